CREATE TABLE lab_load (id BIGINT PRIMARY KEY, owner INTEGER NOT NULL, amount DOUBLE PRECISION NOT NULL, payload TEXT NOT NULL,
  data BYTEA NOT NULL);
CREATE INDEX lab_load_owner ON lab_load (owner);
