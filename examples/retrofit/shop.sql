-- The tables of the old service. Its program writes them as the role app, and its migrations run as the role owner.
CREATE TABLE orders (id int PRIMARY KEY, customer text NOT NULL, amount int NOT NULL, state text NOT NULL DEFAULT 'new');
CREATE TABLE invoices (order_id int PRIMARY KEY REFERENCES orders, amount int NOT NULL);
CREATE TABLE shipments (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, order_id int UNIQUE REFERENCES orders);
GRANT SELECT, INSERT, UPDATE, DELETE ON orders, invoices, shipments TO app;
INSERT INTO orders VALUES (5, 'dora', 100), (6, 'emil', 70);
