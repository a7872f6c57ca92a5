UPDATE lab_mixed2 SET value = :value, changed = CURRENT_TIMESTAMP, changes = changes + 1 WHERE k = :id;
