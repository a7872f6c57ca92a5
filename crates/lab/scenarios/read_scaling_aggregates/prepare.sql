CREATE TABLE lab_aggregate_a (id INTEGER PRIMARY KEY, mykey INTEGER NOT NULL, payload TEXT NOT NULL);
INSERT INTO lab_aggregate_a
  WITH RECURSIVE ids (id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM ids WHERE id < :rows)
  SELECT id, id, :payload FROM ids;
CREATE INDEX lab_aggregate_a_mykey ON lab_aggregate_a (mykey);
CREATE TABLE lab_aggregate_b (id INTEGER PRIMARY KEY, mykey INTEGER NOT NULL, payload TEXT NOT NULL);
INSERT INTO lab_aggregate_b SELECT id, mykey, payload FROM lab_aggregate_a;
CREATE INDEX lab_aggregate_b_mykey ON lab_aggregate_b (mykey);
