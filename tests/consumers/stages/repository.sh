# shellcheck shell=bash
# A repository with files of every kind, and one file that git does not track.
git init -q .
printf 'one\ntwo\nthree\n' >a.txt
printf 'away\n' >away.txt
mkdir folder other
printf 'kept\n' >folder/kept.txt
printf 'x\n' >other/x.txt
printf '#!/bin/sh\n' >run.sh
printf 'a\0b' >picture.bin
printf '*.log\n' >.gitignore
git add -A
git commit -qm 'As found'
echo before >untracked.txt
