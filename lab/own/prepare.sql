CREATE TABLE lab_customer (id INTEGER PRIMARY KEY, balance DOUBLE PRECISION NOT NULL, orders INTEGER NOT NULL);
CREATE TABLE lab_order (id INTEGER PRIMARY KEY, customer INTEGER NOT NULL, article TEXT NOT NULL,
  amount DOUBLE PRECISION NOT NULL, note TEXT NOT NULL);
CREATE INDEX lab_order_customer ON lab_order (customer, id);

INSERT INTO lab_customer
  WITH RECURSIVE ids (id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM ids WHERE id < :customers)
  SELECT id, 0, 0 FROM ids;
