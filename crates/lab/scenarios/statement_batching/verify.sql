SELECT count(*) AS inserted FROM lab_batching
  HAVING count(*) NOT BETWEEN :done * :inserts AND (:done + :failed) * :inserts OR count(*) % :inserts <> 0;
SELECT id, length(payload) AS letters FROM lab_batching WHERE length(payload) <> :width LIMIT 3;
