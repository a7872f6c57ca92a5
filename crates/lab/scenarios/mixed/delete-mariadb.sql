-- The oldest that was inserted. A DELETE with the select in it would lock what others have inserted and not committed yet.
SELECT min(k) INTO @oldest FROM lab_mixed1 WHERE k > :size;
DELETE FROM lab_mixed1 WHERE k = @oldest;
