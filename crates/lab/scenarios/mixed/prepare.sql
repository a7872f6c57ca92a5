CREATE TABLE lab_mixed1 (k BIGINT PRIMARY KEY, value INTEGER NOT NULL, created TIMESTAMP NOT NULL, changed TIMESTAMP NOT NULL,
  changes INTEGER NOT NULL);
INSERT INTO lab_mixed1
  WITH RECURSIVE ids (id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM ids WHERE id < :size)
  SELECT id, id, CURRENT_TIMESTAMP, CURRENT_TIMESTAMP, 0 FROM ids;
CREATE INDEX lab_mixed1_value ON lab_mixed1 (value);
CREATE TABLE lab_mixed2 (k BIGINT PRIMARY KEY, value INTEGER NOT NULL, created TIMESTAMP NOT NULL, changed TIMESTAMP NOT NULL,
  changes INTEGER NOT NULL);
INSERT INTO lab_mixed2 SELECT k, value, created, changed, changes FROM lab_mixed1;
CREATE INDEX lab_mixed2_value ON lab_mixed2 (value);
CREATE TABLE lab_mixed3 (k1 BIGINT NOT NULL, k2 BIGINT NOT NULL, PRIMARY KEY (k1, k2));
INSERT INTO lab_mixed3 SELECT a.k, b.k FROM lab_mixed1 a CROSS JOIN lab_mixed2 b;
