SELECT count(*) AS inserted FROM lab_write
  HAVING count(*) NOT BETWEEN :done AND :done + :failed;
SELECT id, length(payload) AS letters, length(data) AS bytes FROM lab_write
  WHERE length(payload) <> :width OR length(data) <> :bytes LIMIT 3;
