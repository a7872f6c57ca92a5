CREATE TABLE pgbench_branches (bid INTEGER PRIMARY KEY, bbalance INTEGER NOT NULL, filler CHAR(88));
CREATE TABLE pgbench_tellers (tid INTEGER PRIMARY KEY, bid INTEGER NOT NULL, tbalance INTEGER NOT NULL, filler CHAR(84));
CREATE TABLE pgbench_accounts (aid INTEGER PRIMARY KEY, bid INTEGER NOT NULL, abalance INTEGER NOT NULL, filler CHAR(84));
CREATE TABLE pgbench_history (tid INTEGER NOT NULL, bid INTEGER NOT NULL, aid INTEGER NOT NULL, delta INTEGER NOT NULL,
  mtime TIMESTAMP NOT NULL, filler CHAR(22));

-- A quotient is whole only where nothing is left over: MariaDB has fractions.
INSERT INTO pgbench_branches (bid, bbalance)
  WITH RECURSIVE ids (id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM ids WHERE id < :branches)
  SELECT id, 0 FROM ids;
INSERT INTO pgbench_tellers (tid, bid, tbalance)
  WITH RECURSIVE ids (id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM ids WHERE id < :branches * :tellers)
  SELECT id, (id - 1 - (id - 1) % :tellers) / :tellers + 1, 0 FROM ids;
INSERT INTO pgbench_accounts (aid, bid, abalance, filler)
  WITH RECURSIVE ids (id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM ids WHERE id < :branches * :accounts)
  SELECT id, (id - 1 - (id - 1) % :accounts) / :accounts + 1, 0, '' FROM ids;
