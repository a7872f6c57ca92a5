SELECT sum(mydata) FROM lab_read_write WHERE id BETWEEN :low AND :low + :selectrows - 1
  HAVING count(*) = :selectrows;
INSERT INTO lab_read_write (id, mydata, payload) VALUES (:id, 0, :inserted);
