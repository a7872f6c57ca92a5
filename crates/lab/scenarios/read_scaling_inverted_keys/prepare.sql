CREATE TABLE lab_inverted (mykey INTEGER PRIMARY KEY, mykey2 INTEGER NOT NULL, payload TEXT NOT NULL);
-- Rows 0, step, 2 * step, ... have the first keys, rows 1, step + 1, ... the next; each remainder has a row more where rows are left over.
-- A quotient is whole only where nothing is left over: MariaDB has fractions.
INSERT INTO lab_inverted
  WITH RECURSIVE ids (id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM ids WHERE id < :rows),
    parts (place, part) AS (SELECT id - 1, (id - 1) % :step FROM ids)
  SELECT place + 1,
    part * ((:rows - :rows % :step) / :step) + CASE WHEN part < :rows % :step THEN part ELSE :rows % :step END + (place - part) / :step + 1,
    :payload
  FROM parts;
CREATE UNIQUE INDEX lab_inverted_mykey2 ON lab_inverted (mykey2);
