SELECT count(*) AS inserted FROM lab_write
  HAVING count(*) NOT BETWEEN :done AND :done + :failed;
SELECT id, length(payload) AS letters FROM lab_write WHERE length(payload) <> :width LIMIT 3;
