SELECT sum(changes) AS changes FROM lab_mixed2
  HAVING sum(changes) NOT BETWEEN :update AND :update + :failed OR count(*) <> :size;
SELECT count(*) AS found FROM lab_mixed1
  HAVING count(*) NOT BETWEEN :size + :insert - :delete - :failed AND :size + :insert + :failed;
SELECT count(*) AS pairs FROM lab_mixed3 HAVING count(*) <> :size * :size;
