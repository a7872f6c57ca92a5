INSERT INTO lab_order (id, customer, article, amount, note) VALUES (:order, :customer, :article, :amount, :note);
UPDATE lab_customer SET balance = balance + :amount, orders = orders + 1 WHERE id = :customer;
