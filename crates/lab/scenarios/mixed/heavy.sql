SELECT a.k, a.value, b.k, b.value FROM lab_mixed1 a
  JOIN lab_mixed3 ON lab_mixed3.k1 = a.k JOIN lab_mixed2 b ON b.k = lab_mixed3.k2
  WHERE a.value BETWEEN :first AND :first + :read_size - 1 AND b.value BETWEEN :second AND :second + :read_size - 1;
