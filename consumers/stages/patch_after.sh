# shellcheck shell=bash
# Writes to $STORE/made what changed below $TOP since the tree $BEFORE, at most $LIMIT bytes a file: `whole`, and for a patch with
# binary files also `text` (those files left out) and `contents` (the new contents, in which patch.py looks for keys).
set -e
export GIT_DIR=$STORE GIT_COMMON_DIR=$STORE GIT_WORK_TREE=$TOP
cd -P "$TOP"
[ "$PWD" = "$TOP" ] || { echo "the work tree was replaced by a link to $PWD"; exit 1; }
rm -rf "$STORE/made"
mkdir "$STORE/made"
after=$(record)
[ "$after" != "$BEFORE" ] || exit 40
changes() { git diff --no-ext-diff --no-textconv "$@" "$BEFORE" "$after"; }
up_to() { head -c "$LIMIT" >"$1"; cat >/dev/null; }
changes --binary | up_to "$STORE/made/whole"
if grep -aq '^GIT binary patch$' "$STORE/made/whole"; then
    changes | up_to "$STORE/made/text"
    git diff-tree -r "$BEFORE" "$after" | cut -d ' ' -f 4 | git cat-file --batch --buffer | up_to "$STORE/made/contents"
fi
