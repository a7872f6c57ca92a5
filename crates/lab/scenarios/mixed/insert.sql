INSERT INTO lab_mixed1 (k, value, created, changed, changes) VALUES (:id, :value, CURRENT_TIMESTAMP, CURRENT_TIMESTAMP, 0);
