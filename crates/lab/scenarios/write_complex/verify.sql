SELECT sum(changes) AS changes FROM lab_averaged
  HAVING sum(changes) NOT BETWEEN :done AND :done + :failed;
-- The data is twice the key: of a range from low the average is 2 * low + selectrows - 1.
SELECT mykey, mydata, changes FROM lab_averaged
  WHERE (mydata IS NULL AND changes > 0)
    OR mydata NOT BETWEEN :selectrows + 1 AND 2 * :rows - :selectrows + 1
    OR mydata <> CAST(mydata AS INTEGER) OR (CAST(mydata AS INTEGER) - :selectrows + 1) % 2 <> 0
  LIMIT 3;
