-- The oldest that was inserted, so that selects find as much at the end as at the beginning.
DELETE FROM lab_mixed1 WHERE k = (SELECT min(k) FROM lab_mixed1 WHERE k > :size);
