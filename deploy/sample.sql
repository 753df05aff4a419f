-- A table for trials of the gateway. docker-compose.yml runs this once, on an empty database.
CREATE TABLE public.accounts (id bigint PRIMARY KEY, owner text NOT NULL, balance bigint NOT NULL, note text);
INSERT INTO public.accounts (id, owner, balance) VALUES (1, 'ann', 100), (2, 'bob', 200), (3, 'eve', 300), (4, 'joe', 100), (5, 'sue', 200);
