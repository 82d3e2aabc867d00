-- A terminal says how its shell was started and how large it is. A pid of 0: its shell was not started yet.
ALTER TABLE abstract_terminals ADD COLUMN settings TEXT NOT NULL DEFAULT '{}';
