SELECT count(*) FROM lab_aggregate_a a JOIN lab_aggregate_b b ON a.mykey = b.mykey
  WHERE a.mykey BETWEEN :low AND :low + :selectrows - 1
  HAVING count(*) = :selectrows;
