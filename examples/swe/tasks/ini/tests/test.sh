#!/bin/bash
# The reward is 1 if run.sh ends well and all tests of the two lists pass, otherwise 0. All test files come from here: what the agent did to
# those in the repository doesn't count.
tests=$(cd "$(dirname "$0")" && pwd)
rewards=${POLAR_REWARD_DIR:-/logs/verifier}
log=$(mktemp)

rm -rf tests
cp -R "$tests/files/." .
bash "$tests/run.sh" >"$log" 2>&1
code=$?
cat "$log"
passed=$(sed -nE 's/^ok [0-9]+ - (.*)$/\1/p' "$log")
missing=$(sort "$tests"/*_to_pass.txt | comm -23 - <(sort -u <<<"$passed"))
if [ "$code" = 0 ] && [ -z "$missing" ]; then reward=1; else reward=0; fi
echo "exit code $code; not passed: ${missing:-none}"
echo "$reward" >"$rewards/reward.txt"
# Polar's evaluator `script` wants exit code 0 as well, so a process that writes another reward afterwards gains nothing there.
[ "$reward" = 1 ]
