CREATE TABLE lab_read_write (id BIGINT PRIMARY KEY, mydata INTEGER NOT NULL, payload TEXT NOT NULL);
INSERT INTO lab_read_write
  WITH RECURSIVE ids (id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM ids WHERE id < :rows)
  SELECT id, id, :payload FROM ids;
