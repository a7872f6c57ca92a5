SELECT sum(changes) AS changes FROM lab_deadlock
  HAVING sum(changes) NOT BETWEEN :done * :operations AND (:done + :failed) * :operations
    OR sum(changes) % :operations <> 0;
