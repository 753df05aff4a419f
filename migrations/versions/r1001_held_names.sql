-- The hint of a refused write of another resource names the resources that the session holds.
CREATE OR REPLACE FUNCTION fencing.word_refusal_v1(
    p_reason text, p_resource text, p_token text, p_holder text, p_fence fencing.fence, p_target text
) RETURNS void LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    raised text := CASE WHEN p_fence.epoch > 0 THEN p_fence.epoch || '.' ELSE '' END || p_fence.value;
    raised_by text := coalesce(p_fence.holder, p_fence.caller, 'an unnamed holder');
    -- Cut to the longest name and token: settings and columns can have any length.
    resource text := coalesce(left(p_resource, 512), 'a row whose columns do not make up a resource name');
    facts jsonb := jsonb_strip_nulls(jsonb_build_object(
        'code', p_reason, 'resource', left(p_resource, 512), 'token', left(p_token, 64), 'holder', left(p_holder, 200),
        'fence', raised,
        'raised_by', CASE WHEN raised IS NOT NULL THEN raised_by END,
        'raised_at', to_char(p_fence.raised_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
        'caller', fencing.session_role_v1(), 'target', p_target));
    family text := CASE WHEN current_setting('fencing.dialect', true) = 'postgrest' THEN 'PT' ELSE 'FN' END;
    overtaken text := 'Stop writing: a newer holder has taken over and retrying cannot succeed. '
        'Acquire the lock again to get a newer token.';
    hold_first text := format(E'In the transaction of the write, before it:\nSELECT fencing.hold(%L, ''TOKEN'');\n'
        'Or run the program while it holds the lock:\ngateway run --lock %s -- PROGRAM',
        coalesce(left(p_resource, 512), 'RESOURCE'), coalesce(left(p_resource, 512), 'RESOURCE'));
    status text;
    said text;
    advice text;
BEGIN
    CASE p_reason
        WHEN 'token-stale' THEN
            status := '412';
            said := format('The fencing token %s of %s has been overtaken by %s, raised by %s.',
                p_token, resource, raised, raised_by);
            advice := overtaken;
        WHEN 'token-duplicate' THEN
            status := '412';
            said := format('Another holder, %s, uses the fencing token %s of %s.', raised_by, p_token, resource);
            advice := 'Stop writing: two holders were given one token, so the lock service is broken. '
                'Retrying cannot succeed; repair the issuer.';
        WHEN 'token-used' THEN
            status := '412';
            said := format('The fencing token %s of %s has already written.', p_token, resource);
            advice := 'This resource is strict: each token writes once. Acquire the lock again to get a newer token.';
        WHEN 'token-required' THEN
            status := '428';
            said := format('A write of %s touches %s and holds no fencing token.', p_target, resource);
            advice := hold_first;
        WHEN 'token-unclaimed' THEN
            status := '428';
            said := format('The fencing token %s of %s had not been claimed when this statement began.',
                p_token, resource);
            advice := 'A statement must not claim the token it writes with: it would miss what the holder before has '
                'just committed. ' || hold_first;
        WHEN 'token-malformed' THEN
            status := '400';
            said := format('%s is not a fencing token.', coalesce(quote_literal(left(p_token, 64)), 'null'));
            advice := 'Give digits without sign, space or leading zero, optionally ''epoch.value'', as text.';
        WHEN 'resource-malformed' THEN
            status := '400';
            said := 'The resource name is not in canonical form.';
            advice := 'Use at most 512 bytes of RFC 3986 path characters and percent-encode everything else.';
        WHEN 'holder-malformed' THEN
            status := '400';
            said := 'The name of the holder must be 1 to 200 printable ASCII characters.';
            advice := 'Correct the name, or leave it out.';
        WHEN 'resource-mismatch' THEN
            status := '422';
            said := format('A write of %s touches %s, which this transaction does not hold.', p_target, resource);
            -- At most three names, each cut: a session may declare anything.
            advice := 'Narrow the write to the resources whose locks you hold, or hold this one too. You hold '
                || coalesce((
                    SELECT string_agg(left(name, 128), ', ' ORDER BY name) FILTER (WHERE number <= 3)
                           || CASE WHEN count(*) > 3 THEN format(' and %s more', count(*) - 3) ELSE '' END
                    FROM (SELECT name, row_number() OVER (ORDER BY name) AS number
                          FROM jsonb_object_keys(fencing.declared_v1()) AS name) AS held), 'none') || '.';
        WHEN 'resource-underivable' THEN
            status := '422';
            said := format('TRUNCATE %s touches every row, whatever its resource.', p_target);
            advice := 'Use DELETE with conditions that pick the rows of the resources you hold.';
        WHEN 'isolation' THEN
            status := '409';
            said := format('The fencing token %s of %s cannot be claimed in a %s transaction.',
                p_token, resource, upper(current_setting('transaction_isolation')));
            advice := 'Its snapshot may be older than what the holder before has committed. Claim it in a READ '
                'COMMITTED transaction of its own first; then it can be held here.';
        WHEN 'writes-pending' THEN
            status := '503';
            said := format('An object write of an older holder is pending on %s.', resource);
            advice := format('Only the gateway can settle it. Call its barrier, POST /v1/fences/%s/barrier, then '
                'start this transaction again.', resource);
    END CASE;
    RAISE LOG 'fencing: refused %', facts;
    RAISE EXCEPTION USING ERRCODE = family || status, MESSAGE = said, DETAIL = facts::text, HINT = advice;
END
$function$;
