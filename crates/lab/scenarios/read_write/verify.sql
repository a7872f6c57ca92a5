SELECT count(*) - :rows AS inserted FROM lab_read_write
  HAVING count(*) - :rows NOT BETWEEN :done * :operations AND (:done + :failed) * :operations
    OR (count(*) - :rows) % :operations <> 0;
