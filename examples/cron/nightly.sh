#!/bin/sh
# The nightly job: a report in S3, and a row that says that the night is done. It knows nothing of locks or tokens:
# `gateway run` has put what psql and the AWS CLI need into the environment.
set -eu
night=${NIGHT:-$(date +%F)}
machine=${MACHINE:-$(hostname)}

sql() {
    psql --no-psqlrc --quiet --tuples-only --no-align --set ON_ERROR_STOP=1 --set SHOW_CONTEXT=never \
        --set night="$night" --set machine="$machine"
}

# The lock lets one machine in at a time. That it is once a night is for the job to see to: the clock of another machine
# may be a minute late. The fence was raised before this job began, so what it reads here stays true.
if [ -n "$(echo "SELECT machine FROM runs WHERE job = 'nightly' AND day = :'night'" | sql)" ]; then
    echo "somebody has done the night of $night already"
    exit 0
fi

echo "working, process $$"
sleep "${WORK:-1}"

# The row comes last, and only after the report: a failed upload ends the job here, and the next machine does the work.
echo "The report of $machine" | aws s3 cp --only-show-errors - "s3://reports/jobs/nightly/$night.txt"
echo "INSERT INTO runs VALUES ('nightly', :'night', :'machine')
      ON CONFLICT (job, day) DO UPDATE SET machine = excluded.machine" | sql
echo "done"
