SELECT count(*) AS inserted FROM lab_prepared
  HAVING count(*) NOT BETWEEN :done * :writes AND (:done + :failed) * :writes OR count(*) % :writes <> 0;
SELECT id, length(payload) AS letters FROM lab_prepared WHERE length(payload) <> :width LIMIT 3;
