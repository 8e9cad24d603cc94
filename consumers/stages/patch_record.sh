# shellcheck shell=bash
# The part that patch_before.sh and patch_after.sh share; patch.py puts it before either. Exit code 40: there is nothing to do.
command -v git >/dev/null || exit 40
# shellcheck disable=SC2046  # one name a word
unset $(git rev-parse --local-env-vars)
# What tools make beside the work, as lines of a .gitignore. Git lists no untracked file that they name, and every file of the index.
# By name are only things that nobody writes by hand: `build` and `dist` may hold sources.
MADE='__pycache__/
*.py[co]
*.egg-info/
.eggs/
.pytest_cache/
.mypy_cache/
.ruff_cache/
.hypothesis/
.coverage
node_modules/
.gradle/
*.class
*.o'
marked() {  # folders that say of themselves that they are a virtual environment or a cache, as Cargo's `target` does
    local mark first
    find . \( -name .git -o -name node_modules \) -prune -o -type f \( -name pyvenv.cfg -o -name CACHEDIR.TAG \) ! -path $'*\n*' -print |
        while IFS= read -r mark; do
            if [ "${mark##*/}" = CACHEDIR.TAG ]; then
                # The first bytes of the file by https://bford.info/cachedir/
                { IFS= read -r -n 43 first <"$mark"; } 2>/dev/null || continue  # it ended before, or can't be read
                [ "$first" = 'Signature: 8a477f597d28d172789f06886806bc55' ] || continue
            fi
            printf '%s\n' "${mark%/*}"
        done
}
left_out() {  # writes $STORE/info/exclude; what the task says in its own file, or in a .gitignore, counts more
    # All folders that hold files of the index, which is the one from before the run: there no mark hides what the run adds.
    {
        echo .
        git ls-files -z | tr '\0' '\n' | sed 's|^|./|; s|/[^/]*$||' | uniq | sed -n -e ':up' -e 'p; s|/[^/]*$||; t up'
    } >"$STORE/info/folders"
    {
        printf '%s\n' "$MADE"
        marked | grep -vxFf "$STORE/info/folders" | sed 's|[][*?\\!# ]|\\&|g; s|^\.||; s|$|/|'
        cat "$STORE/info/task"
    } >"$STORE/info/exclude"
}
record() {  # writes the work tree as a tree object and prints the tree's id
    left_out || return
    # For a nested repository in the index git would run `git status` inside it, under that repository's own configuration.
    { git ls-files --stage | grep ^160000 | cut -f 2- | git update-index --force-remove --stdin; } || :
    {
        printf '.\0'
        find . -name .git -prune -o -type f -size +32768 -exec printf ':(exclude,literal)%s\0' {} +  # a name may have newlines
    } | git add --all --ignore-errors --pathspec-from-file=- --pathspec-file-nul || [ $? -eq 1 ] || return  # exit code 1: some files can't be read
    git write-tree
}
