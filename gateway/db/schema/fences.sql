-- Fences: the highest token that each resource has seen, and the canonical spelling of names. claim.sql raises them.

-- One row for each resource. Never deleted: a fence that is gone lets overtaken holders write again.
CREATE TABLE fencing.fence (
    resource text COLLATE "C" PRIMARY KEY,
    epoch integer NOT NULL CHECK (epoch >= 0),
    value bigint NOT NULL CHECK (value >= 0),
    holder text,
    caller text,
    raised_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The write that used up this token on a strict resource. Null while only a barrier has shown the token.
    write_id uuid
) WITH (fillfactor = 70);

-- Spell a value so that it can be one segment of a resource name.
-- Takes any text.
-- Returns it percent-encoded; `.` and `..`, with any number of `~` behind, get one `~` more. Agrees to the letter
-- with gateway.fencing.resource.escape.
CREATE FUNCTION fencing.escape_v1(value text) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN CASE
    WHEN starts_with(value, '.') AND value COLLATE "C" ~ '^[.][.]?~*$' THEN value || '~'
    WHEN value COLLATE "C" ~ '^[A-Za-z0-9._~!$&''()*+;:@-]*$' THEN value
    ELSE (
        SELECT string_agg(
            CASE WHEN letter COLLATE "C" ~ '^[A-Za-z0-9._~!$&''()*+;:@-]$' THEN letter
                 ELSE regexp_replace(upper(encode(convert_to(letter, 'UTF8'), 'hex')), '(..)', '%\1', 'g') END,
            '' ORDER BY position)
        FROM unnest(string_to_array(value, NULL)) WITH ORDINALITY AS letters (letter, position)
    )
END;

-- Tell whether a text is a resource name in canonical form.
-- Returns null for null. Agrees to the letter with gateway.fencing.resource.canonical.
CREATE FUNCTION fencing.canonical_v1(name text) RETURNS boolean
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN octet_length(name) <= 512
    AND name COLLATE "C" ~ '^([A-Za-z0-9._~!$&''()*+;:@/-]|%[0-9A-F]{2})+$'
    AND name COLLATE "C" !~ '%(2[146-9ABDE]|3[0-9AB]|4[0-9A-F]|5[0-9AF]|6[1-9A-F]|7[0-9AE])'
    AND name COLLATE "C" !~ '(^|/)[.][.]?(/|$)';
