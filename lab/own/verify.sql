SELECT id, customer FROM lab_order WHERE customer NOT IN (SELECT id FROM lab_customer) LIMIT 3;
SELECT count(*) AS customers FROM lab_customer HAVING count(*) <> :customers;
SELECT sum(orders) AS counted FROM lab_customer HAVING sum(orders) <> (SELECT count(*) FROM lab_order);
