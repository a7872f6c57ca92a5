UPDATE lab_averaged SET changes = changes + 1,
    mydata = (SELECT avg(mydata) FROM lab_average WHERE mykey BETWEEN :low AND :low + :selectrows - 1)
  WHERE mykey = :key;
