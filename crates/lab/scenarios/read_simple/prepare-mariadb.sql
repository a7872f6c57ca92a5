CREATE TABLE lab_read (id INTEGER PRIMARY KEY, payload LONGTEXT NOT NULL, data LONGBLOB NOT NULL);
INSERT INTO lab_read
  WITH RECURSIVE ids (id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM ids WHERE id < :rows)
  SELECT id, :payload, :data FROM ids;
