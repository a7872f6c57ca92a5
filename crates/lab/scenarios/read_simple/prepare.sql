CREATE TABLE lab_read (id INTEGER PRIMARY KEY, payload TEXT NOT NULL, data BYTEA NOT NULL);
INSERT INTO lab_read
  WITH RECURSIVE keys (id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM keys WHERE id < :rows)
  SELECT id, :payload, :data FROM keys;
