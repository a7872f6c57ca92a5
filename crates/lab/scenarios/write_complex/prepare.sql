CREATE TABLE lab_average (mykey INTEGER PRIMARY KEY, mydata INTEGER NOT NULL);
INSERT INTO lab_average
  WITH RECURSIVE ids (id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM ids WHERE id < :rows)
  SELECT id, 2 * id FROM ids;
CREATE TABLE lab_averaged (mykey INTEGER PRIMARY KEY, mydata DOUBLE PRECISION, changes INTEGER NOT NULL);
INSERT INTO lab_averaged SELECT mykey, NULL, 0 FROM lab_average;
