-- Who caused an event: the key of the request, as JSON.
ALTER TABLE events ADD COLUMN author TEXT;
