-- The providers that a tenant may use, as a JSON list of names. NULL: no list was set.
ALTER TABLE tenants ADD COLUMN providers TEXT;
