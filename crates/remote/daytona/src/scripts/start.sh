# Starts a command once. The arguments: token, folder, `i` for input or `-`, time limit or `-`, meta, patterns of files to remove, program,
# search path or nothing for the shell's own; then the command.
exec 2>/dev/null
atoll_base=/tmp/.atoll
[ -d $atoll_base ] || mkdir -p -m 700 $atoll_base || exit 95
atoll_d=$atoll_base/$1

atoll_refuse() {
  rm -f "$atoll_d.start"
  echo "$1"
  echo end
  exit 0
}

atoll_forget() {
  atoll_files=
  set -f
  for atoll_pattern in $atoll_old; do atoll_files="$atoll_files $atoll_base/$atoll_pattern"; done
  set +f
  [ -z "$atoll_files" ] || rm -f $atoll_files
}

atoll_encoded() {
  [ -s "$atoll_d.$2" ] || return 0
  echo "$1"
  head -c 524288 "$atoll_d.$2" | base64
  echo .
}

# What is known now. The exit is told only with the last byte of the output.
atoll_report() {
  atoll_n=0
  until [ -s "$atoll_d.pid" ]; do
    [ $atoll_n -lt 250 ] || exit 95
    atoll_n=$((atoll_n + 1))
    sleep 0.02
  done
  atoll_exit=
  [ -e "$atoll_d.end" ] && read -r atoll_exit <"$atoll_d.exit"
  read -r atoll_pid <"$atoll_d.pid"
  echo "p $atoll_pid"
  atoll_text || { atoll_encoded o out; atoll_encoded e err; }
  [ -z "$atoll_exit" ] || echo "x $atoll_exit"
  echo end
}

# The same call again, after a lost answer, starts nothing.
atoll_is_first=
set -C
{ true >"$atoll_d.start"; } && atoll_is_first=1
set +C
if [ -n "$atoll_is_first" ]; then
  cd "$2" || atoll_refuse c
  atoll_has "$7" "${8:-$PATH}" || atoll_refuse m
  echo "$5" >"$atoll_d.meta"
  : >"$atoll_d.out"
  : >"$atoll_d.err"
  atoll_input=$3 atoll_limit=$4 atoll_old=$6
  shift 8
  atoll_begin "$@"
else
  atoll_report
fi
exit 0
