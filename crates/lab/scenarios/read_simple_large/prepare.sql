CREATE TABLE lab_large_a (id INTEGER PRIMARY KEY, payload TEXT NOT NULL);
INSERT INTO lab_large_a
  WITH RECURSIVE ids (id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM ids WHERE id < :rows)
  SELECT id, :payload FROM ids;
CREATE TABLE lab_large_b (id INTEGER PRIMARY KEY, payload TEXT NOT NULL);
INSERT INTO lab_large_b SELECT id, payload FROM lab_large_a;
