SELECT a.k, a.value, b.k2 FROM lab_mixed1 a JOIN lab_mixed3 b ON b.k1 = a.k
  WHERE a.value BETWEEN :first AND :first + :read_size - 1 AND b.k2 BETWEEN :second AND :second + :read_size - 1;
