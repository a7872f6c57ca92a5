SELECT count(*) AS inserted FROM lab_load
  HAVING count(*) NOT BETWEEN :done * :rows AND (:done + :failed) * :rows OR count(*) % :rows <> 0;
SELECT id, length(payload) AS letters, length(data) AS bytes FROM lab_load
  WHERE length(payload) <> :width OR length(data) <> :bytes LIMIT 3;
