-- name: bump
-- Start a new epoch of a fence that carries exactly the expected token.
SELECT outcome, fence, ended FROM fencing.bump_epoch_v1($1, $2, $3, $4, $5)
