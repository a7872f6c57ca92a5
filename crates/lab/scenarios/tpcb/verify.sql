SELECT * FROM (SELECT
    (SELECT coalesce(sum(abalance), 0) FROM pgbench_accounts) AS accounts,
    (SELECT coalesce(sum(tbalance), 0) FROM pgbench_tellers) AS tellers,
    (SELECT coalesce(sum(bbalance), 0) FROM pgbench_branches) AS branches,
    (SELECT coalesce(sum(delta), 0) FROM pgbench_history) AS history) AS sums
  WHERE accounts <> tellers OR accounts <> branches OR accounts <> history;
SELECT count(*) AS transactions FROM pgbench_history
  HAVING count(*) NOT BETWEEN :tpcb AND :tpcb + :failed;
