INSERT INTO cinema.directors VALUES (1, 'Ada Lumen', 'NL'), (2, 'Bo Reyes', 'MX'), (3, 'Cleo Nakata', NULL);
INSERT INTO cinema.films VALUES
    (1, 'Harbour', 1999, 1, '{sea,night}', '{"studio": {"city": "Oslo"}, "takes": [3, 5], "colour": true}', 7.5, 90),
    (2, 'The Long Tide', 2004, 1, '{sea}', '{"studio": {"city": "Rome"}, "takes": [1], "colour": false}', 6.0, 120),
    (3, 'Salt', 2004, 2, '{}', NULL, 8.1, 90),
    (4, 'Paper, Folded', 2011, 2, NULL, NULL, NULL, 75),
    (5, 'under_line', 2020, NULL, '{night}', '{"studio": null}', 9.0, 110);
INSERT INTO cinema.actors VALUES (1, 'Ivo'), (2, 'Mara'), (3, 'Sol');
INSERT INTO cinema.roles VALUES (1, 1, 'captain'), (1, 2, 'cook'), (2, 2, 'captain');
INSERT INTO cinema.premieres VALUES (1, 'Bergen'), (2, 'Turin');
INSERT INTO cinema.remakes VALUES (1, 1, 5);
INSERT INTO cinema.tickets (seat, price, note) VALUES ('A1', 10, 'aisle'), ('A2', 12, NULL);
INSERT INTO cinema.seats VALUES ('red', 1, false), ('red', 2, true), ('blue', 1, false);
INSERT INTO cinema.badges VALUES (1);
INSERT INTO cinema.notes VALUES ('one', 'x'), ('two', 'x'), ('three', 'y');
INSERT INTO cinema.stays VALUES (1, '[1,5)'), (2, '[5,9)'), (3, '[20,30)');
INSERT INTO cinema.papers VALUES
    (1, 'Stories about cats and dogs', to_tsvector('english', 'Stories about cats and dogs')),
    (2, 'The quick brown fox', to_tsvector('english', 'The quick brown fox')),
    (3, 'Les chats amusants', to_tsvector('french', 'Les chats amusants'));
INSERT INTO cinema.showings VALUES
    (1, '2024-05-01 18:00+00', true, '11111111-2222-3333-4444-555555555555'),
    (2, '2024-05-02 18:00+00', false, NULL),
    (3, NULL, NULL, NULL);
INSERT INTO cinema.screens VALUES (1, (4, 3), '{10,20,30}'), (2, (16, 9), '{7,8}');
INSERT INTO cinema.invoices (id, net) VALUES (1, 5);
INSERT INTO cinema."Odd Names" VALUES (1, 'comma', 'dash', 5, 'logic');
INSERT INTO cinema.accounts VALUES (1, 'ann@x', 'Ann', 10), (2, 'bob@x', 'Bob', 20), (3, 'cid@x', 'Cid', 30);
INSERT INTO cinema.pairs VALUES ('x/y', 'z', 1), ('x', 'y/z', 2);
INSERT INTO cinema.days VALUES ('2024-01-02', 1);
INSERT INTO cinema.folders VALUES (1), (2);
INSERT INTO cinema.sheets VALUES (10, 1), (11, 1), (20, 2);
INSERT INTO archive.boxes VALUES (1, 'posters'), (2, 'reels');
