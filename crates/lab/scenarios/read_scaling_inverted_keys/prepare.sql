CREATE TABLE lab_inverted (mykey INTEGER PRIMARY KEY, mykey2 INTEGER NOT NULL, payload TEXT NOT NULL);
-- Rows 0, step, 2 * step, ... have the first keys, rows 1, step + 1, ... the next; each remainder has a row more where rows are left over.
INSERT INTO lab_inverted
  WITH RECURSIVE keys (id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM keys WHERE id < :rows),
    parts (place, part) AS (SELECT id - 1, (id - 1) % :step FROM keys)
  SELECT place + 1,
    part * (:rows / :step) + CASE WHEN part < :rows % :step THEN part ELSE :rows % :step END + place / :step + 1,
    :payload
  FROM parts;
CREATE UNIQUE INDEX lab_inverted_mykey2 ON lab_inverted (mykey2);
