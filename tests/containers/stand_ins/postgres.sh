#!/bin/sh
# Does with POSTGRES_USER, POSTGRES_PASSWORD, POSTGRES_DB and the scripts for an empty database what postgres:17 does.
set -eu
data=/var/lib/postgresql/data
mkdir -p "$data"
chown postgres "$data"
as_postgres() { setpriv --reuid postgres --regid postgres --clear-groups "$@"; }
if [ ! -e "$data/PG_VERSION" ]; then
    echo "$POSTGRES_PASSWORD" > /tmp/password
    chown postgres /tmp/password
    as_postgres initdb --pgdata "$data" --username "$POSTGRES_USER" --pwfile /tmp/password --auth-host scram-sha-256 > /dev/null
    echo "host all all all scram-sha-256" >> "$data/pg_hba.conf"
    as_postgres pg_ctl --pgdata "$data" --options "-c listen_addresses=''" --wait --silent start
    as_postgres psql --quiet --username "$POSTGRES_USER" --dbname postgres --command "CREATE DATABASE $POSTGRES_DB"
    for script in /docker-entrypoint-initdb.d/*.sql; do
        as_postgres psql --quiet --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" --file "$script"
    done
    as_postgres pg_ctl --pgdata "$data" --wait --silent stop
fi
exec setpriv --reuid postgres --regid postgres --clear-groups postgres -D "$data" -c "listen_addresses=*"
