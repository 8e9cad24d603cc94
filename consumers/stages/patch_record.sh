# shellcheck shell=bash
# The part that patch_before.sh and patch_after.sh share; patch.py puts it before either. Exit code 40: there is nothing to do.
command -v git >/dev/null || exit 40
# shellcheck disable=SC2046  # one name a word
unset $(git rev-parse --local-env-vars)
record() {  # writes the work tree as a tree object and prints the tree's id
    # For a nested repository in the index git would run `git status` inside it, under that repository's own configuration.
    { git ls-files --stage | grep ^160000 | cut -f 2- | git update-index --force-remove --stdin; } || :
    {
        printf '.\0'
        find . -name .git -prune -o -type f -size +32768 -exec printf ':(exclude,literal)%s\0' {} +  # a name may have newlines
    } | git add --all --ignore-errors --pathspec-from-file=- --pathspec-file-nul || [ $? -eq 1 ] || return  # exit code 1: some files can't be read
    git write-tree
}
