#!/bin/sh
# sshop guard: runs one intended action at most once, and answers for it later. docs/PROTOCOL.md is its contract.
#
# One process reads the request, claims it by a marker, runs the command in a session of its own, records how it ended
# and answers. A lost channel must not stop it between claim and record: it ignores what a dying line sends, and a
# write into a dead channel does no harm. Its variables begin with an underscore, so that none of the login's own,
# which the command inherits, is touched. Nothing that arrived is ever evaluated. Word splitting is used on purpose
# (no globs, blanks only), and `test -ef` is in every shell that matters, and in POSIX since 2024.
# shellcheck disable=SC1007,SC2015,SC2016,SC2086,SC2093,SC2163,SC3013
set -u -f

# The shell of another user (become) reads its folder and variables before the command gets descriptor 0.
_child='set -f
_v=
_n="
"
while IFS= read -r _l; do
	case $_l in +*) _v=$_v$_n${_l#+} && continue ;; esac
	case $_v in d*) cd -- "${_v#d }" || exit 125 ;; e*) export "${_v#e }" ;; esac
	_v=$_l
	[ "$_l" != go ] || exec "$@"
done
exit 125'

# --- words on the wire and in the marker -------------------------------------------------------------------------

put() { # put TEXT: writes TEXT as it is; never by a program, whose argv others could read
	case ${KSH_VERSION-} in
	*MIRBSD*) print -rn -- "$1" ;;
	*) printf '%s' "$1" ;;
	esac
}

say() { # say WORD...: one framed line of the answer; nobody may be there to read it
	put "${_lead}sshop1 $_nonce $*$_nl" 2>/dev/null
	_lead=
}

note() { # note WORD...: one line of the marker, over its padding
	put "$* ;$_nl" 2>/dev/null >&8
}

refuse() { # refuse CODE TEXT: the answer is no
	say "no $1 claim=$_claim op=$_op gen=$_gen rec=$_rec ran=$_mran twin=$_twin bytes=$_bytes msg=$2"
	finish
}

finish() { # the answer is complete
	say end
	leave
}

leave() { # takes the scaffolding away and ends; whoever waited has the answer by now
	[ -z "$_err$_refuge" ] || [ -n "$_refuge" ] || sweep
	IFS=$_nl
	[ -z "$_litter" ] || rm -f -- $_litter 2>/dev/null
	[ -z "$_refuge" ] || rmdir -- "$_refuge" 2>/dev/null
	exit 0
}

litter() { # litter PATH...: to be removed at the end
	for _path2; do _litter=$_litter$_path2$_nl; done
}

sweep() { # what guards that were killed have left in the spool: its names tell whose it is
	set +f
	for _path2 in "$_base/spool"/*; do
		IFS=. # NONCE.BOOT@NAMESPACE.PID.START.KIND
		set -f -- ${_path2##*/}
		IFS=' '
		[ $# = 5 ] || continue
		case $1.$2.$3.$4 in "$_own") continue ;; esac
		case $2 in
		"${_boot%.*}@$_space") ! alive "$3:$4" || continue ;;
		"${_boot%.*}"@*) continue ;; # nobody here can tell whether it lives
		esac
		[ "$5" != pid ] || { IFS= read -r _text <"$_path2" && alive "$_text"; } || litter "$_path2"
		[ "$5" = pid ] || litter "$_path2"
	done 2>/dev/null
	set -f
}

because() { # because FILE: the first line of a utility's complaint, as _why
	_why=
	[ ! -f "$1" ] || IFS= read -r _why <"$1" || :
	_why=${_why:-no reason given}
}

diagnose() { # _fault: what the disk said, in _err, or says when a copy of the guard is put there
	because "$_err"
	if [ "$_why" = 'no reason given' ]; then
		litter "$_spool.try"
		_why=$(cp -- "$0" "$_spool.try" 2>&1) || :
		_why=${_why:-$_base/spool cannot be written}
		_why=${_why%%"$_nl"*}
	fi
	case $_why in
	*'No space'* | *uota*) _fault="no_space $_why" ;;
	*'not permitted'* | *'not supported'* | *'not implemented'* | *'many links'*) _fault="no_links $_why" ;;
	*) _fault="no_store $_why" ;;
	esac
}

refuse_disk() { # the disk said no
	diagnose
	refuse "${_fault%% *}" "${_fault#* }"
}

need() { # need UTILITY...: refuses where one is missing, before anything stands
	for _tool; do
		command -v "$_tool" >/dev/null || refuse no_tool "$_tool is missing on the host"
	done
}

# --- what the machine knows --------------------------------------------------------------------------------------

stat_of() { # stat_of PID|self: _pid _stat _ppid _sid _tty _start of that process; false where there is none
	_pid=$1 _text=
	if [ -r /proc/self/stat ]; then
		[ -r "/proc/$1/stat" ] || return 1
		while IFS= read -r _line2; do _text=$_text$_line2; done 2>/dev/null <"/proc/$1/stat"
		[ -n "$_text" ] || return 1
		_pid=${_text%% *}
		set -- ${_text##*") "}
		_stat=$1 _ppid=$2 _sid=$4 _tty=$5 _start=${20}
		return 0
	fi
	[ "$1" != self ] || _pid=$(exec sh -c 'echo "$PPID"')
	_text=$(ps -o stat= -o ppid= -o pgid= -o lstart= -p "$_pid" 2>/dev/null) || return 1
	set -- $_text
	[ $# -ge 8 ] || return 1
	_stat=$1 _ppid=$2 _sid=$3 _tty=0 _start=$4_$5_$6_$7_$8
}

alive() { # alive PID:START: that very process is there, and no zombie
	case $1 in [0-9]*:?*) ;; *) return 1 ;; esac
	stat_of "${1%%:*}" && [ "$_start" = "${1#*:}" ] || return 1
	case $_stat in [ZXx]*) return 1 ;; esac
}

session_alive() { # session_alive PID:START: that process, or any member of the session it began, is there
	case $1 in [0-9]*:?*) ;; *) return 1 ;; esac
	_leader=${1%%:*}
	! alive "$1" || return 0
	! stat_of "$_leader" || [ "$_start" = "${1#*:}" ] || return 1
	if [ ! -r /proc/self/stat ]; then
		kill -0 "-$_leader" 2>/dev/null
		return
	fi
	set +f
	set -f -- /proc/[0-9]*
	for _proc; do
		stat_of "${_proc#/proc/}" && [ "$_sid" = "$_leader" ] || continue
		case $_stat in [ZXx]*) ;; *) return 0 ;; esac
	done
	# /proc may hide other users' processes (hidepid): one that may not be signalled is there.
	! stat_of 1 && ! stat_of "$_leader" || return 1
	_why=$(kill -0 "$_leader" 2>&1) && return
	case $_why in *ermitted*) ;; *) return 1 ;; esac
}

now() { # _up: seconds since boot, and _cs, the same in hundredths; the clock on the wall decides nothing
	_up=0.00
	if [ -r /proc/uptime ]; then
		IFS=' ' read -r _up _rest </proc/uptime
	else
		_up=$(date +%s)
		case $_up in *[!0-9]*) _up=0 ;; esac
		_up=$_up.00
	fi
	_cs=${_up%.*}${_up#*.}
	while :; do
		case $_cs in 0?*) _cs=${_cs#0} ;; *) return ;; esac
	done
}

elapsed() { # elapsed CENTISECONDS: _ms, milliseconds since that
	now
	_ms=$(((_cs - $1) * 10))
}

know_machine() { # _machine _boot _space _sup _own: this machine, boot, process namespace and process
	_rest=
	[ ! -r /etc/machine-id ] || IFS= read -r _rest </etc/machine-id
	case $_rest in '' | uninitialized) _rest=$(uname -n) ;; esac
	_machine=m-
	case $_rest in *[!A-Za-z0-9.-]*) ;; *) _machine=m-$_rest _rest= ;; esac
	while [ -n "$_rest" ]; do
		_char=${_rest%"${_rest#?}"}
		_rest=${_rest#?}
		case $_char in [!A-Za-z0-9.-]) _char=_ ;; esac
		_machine=$_machine$_char
	done
	# The start of process 1 tells one PID namespace from another on the same boot.
	_rest=$_start
	! stat_of 1 || _space=$_start
	_start=$_rest
	if [ -r /proc/sys/kernel/random/boot_id ]; then
		IFS= read -r _boot </proc/sys/kernel/random/boot_id
	else
		_boot=$(sysctl -n kern.boottime 2>/dev/null | tr -c '0-9\n' _) || :
	fi
	_boot=${_boot:--}.$_space
	_sup=$$:$_start _own=$_nonce.${_boot%.*}@$_space.$$.$_start
	now
	_born=$_up
}

find_tools() { # _hasher, _grade and _setsid: how this host makes a SHA-256, syncs, and begins a session
	_hasher= _digest=sha256 _grade=unsynced _setsid=
	if command -v sha256sum >/dev/null; then
		_hasher=sha256sum
	elif command -v shasum >/dev/null; then
		_hasher='shasum -a 256'
	elif command -v openssl >/dev/null; then
		_hasher='openssl dgst -sha256 -r'
	elif command -v sha256 >/dev/null; then
		_hasher='sha256 -q'
	else
		_digest=none _nothing=-
	fi
	! command -v sync >/dev/null || _grade=file_synced
	_hoped=$_grade
	IFS=: # by its path, since the command's own PATH may not lead there
	for _folder in $PATH; do
		[ -n "$_setsid" ] || [ ! -x "$_folder/setsid" ] || _setsid=$_folder/setsid
	done
	IFS=' '
}

hash_of() { # hash_of FILE [COUNT]: _hash, the SHA-256 of it, or of its first COUNT bytes; - where there is none
	_hash=-
	[ -n "$_hasher" ] && [ -f "$1" ] || return 0
	if [ $# = 1 ]; then
		_hash=$($_hasher <"$1") || :
	else
		# the sum of what a killed head let through would be a lie: it counts only after a plus
		_hash=$({ { head -c "$2" <"$1" && put + >&9; } | $_hasher; } 9>&1) || :
		case $_hash in +*) _hash=${_hash#+} ;; *) _hash= ;; esac
	fi
	_hash=${_hash%% *}
	_hash=${_hash:--}
}

# --- predicates on what arrived ----------------------------------------------------------------------------------

is_id() { # is_id TEXT: an operation ID
	case $1 in '' | [!A-Za-z0-9]* | *[!A-Za-z0-9._-]*) return 1 ;; esac
	[ ${#1} -le 128 ]
}

is_name() { # is_name TEXT: the name of a variable
	case $1 in '' | [!A-Za-z_]* | *[!A-Za-z0-9_]*) return 1 ;; esac
}

is_touchy() { # is_touchy NAME: some shell gives that variable a meaning of its own; env has to set it
	case $1 in
	_* | *UID | *GID | PPID | PGRP | GROUPS | USERNAME | *RANDOM | SECONDS | LINENO | EPOCH* | OPT* | IFS | PS[0-9] | \
		PWD | OLDPWD | SHELLOPTS | BASH* | FUNC* | DIRSTACK | HIST* | COMP_* | PIPESTATUS | LC_* | LANG | COLUMNS | \
		LINES | KSH* | ERRNO | TTY* | YASH* | ZSH* | TMOUT) ;;
	*) return 1 ;;
	esac
}

is_number() { # is_number TEXT: a decimal number of at most 12 digits
	case $1 in '' | *[!0-9]* | 0?* | ?????????????*) return 1 ;; esac
}

is_minted() { # is_minted ID: an ID that carries its time
	case $1 in op_[0-7]*) ;; *) return 1 ;; esac
	case ${1#op_} in *[!0-9a-hjkmnp-tv-z]*) return 1 ;; esac
	[ ${#1} -eq 29 ]
}

is_overtaken() { # is_overtaken ID: minted, and its time is not newer than the horizon
	[ "$_horizon" != - ] && is_minted "$1" || return 1
	_mine=${1#op_} _theirs=${_horizon#op_} _rest=0123456789abcdefghjkmnpqrstvwxyz
	while [ ${#_mine} -gt 16 ]; do
		_char=${_mine%"${_mine#?}"} _other=${_theirs%"${_theirs#?}"}
		_mine=${_mine#?} _theirs=${_theirs#?}
		[ "$_char" = "$_other" ] || break
	done
	_char=${_rest%%"$_char"*} _other=${_rest%%"$_other"*}
	[ ${#_char} -le ${#_other} ]
}

is_folder() { # is_folder PATH: a folder of the account, and no link
	[ -d "$1" ] && [ ! -L "$1" ] && [ -O "$1" ]
}

is_there() { # is_there PATH: a name of any kind, a dangling link too
	[ -e "$1" ] || [ -L "$1" ]
}

is_weak() { # the grade is weaker than the policy accepts
	case $_weakest.$_grade in file_synced.all_synced | *_synced.unsynced) ;; *) return 1 ;; esac
}

# --- the marker --------------------------------------------------------------------------------------------------

forget_marker() { # the _m variables of no marker
	_mid= _mgen= _mrec=- _matt=- _mfp=- _mboot=- _msup=- _mproc=- _muser= _mkilled=- _mstatus=- _mms=0 _msync=-
	_mout=- _mouts=- _merr=- _merrs=- _mbefore=- _mafter=- _mlimit=enforced _mran=- _mseen=' ' _mlines=0
}

read_marker() { # read_marker FILE: what its counting lines say, as _m variables; false where it is no marker
	forget_marker
	[ -f "$1" ] && [ ! -L "$1" ] || return 1
	while IFS= read -r _line2 && [ -n "$_line2" ]; do
		_mlines=$((_mlines + 1))
		case $_line2 in *' ;') read_words ${_line2%;} ;; esac
	done 2>/dev/null <"$1"
	case $_mseen in ' sshop-marker claimed '* | ' sshop-marker fenced '*) ;; *) return 1 ;; esac
}

read_id() { # read_id FILE: _mid alone, from the first line of a marker
	forget_marker
	[ -f "$1" ] && [ ! -L "$1" ] && IFS= read -r _line2 2>/dev/null <"$1" || return 1
	case $_line2 in *' ;') read_words ${_line2%;} ;; esac
}

read_words() { # read_words WORD k=v...: one line of a marker
	_word=$1 _when=
	_mseen="$_mseen$1 "
	shift
	for _pair; do
		_value2=${_pair#*=}
		case $_word.${_pair%%=*} in
		sshop-marker.id) _mid=$_value2 ;;
		sshop-marker.gen) _mgen=$_value2 ;;
		claimed.rec | fenced.rec) _mrec=$_value2 ;;
		claimed.att | fenced.att) _matt=$_value2 ;;
		claimed.fp) _mfp=$_value2 ;;
		fenced.ran) _mran=$_value2 ;;
		claimed.boot | fenced.boot) _mboot=$_value2 ;;
		claimed.sup | fenced.sup) _msup=$_value2 ;;
		claimed.sync | synced.as) _msync=$_value2 ;;
		condition.when) _when=$_value2 ;;
		condition.status) case $_when in before) _mbefore=$_value2 ;; after) _mafter=$_value2 ;; esac ;;
		process.pid) _mproc=$_value2 ;;
		process.user) _muser=$_value2 ;;
		killed.by) _mkilled=$_value2 ;;
		exited.status) _mstatus=$_value2 ;;
		exited.ms) _mms=$_value2 ;;
		exited.limit) _mlimit=$_value2 ;;
		output.out) _mout=${_value2%%:*} _mouts=${_value2#*:} ;;
		output.err) _merr=${_value2%%:*} _merrs=${_value2#*:} ;;
		esac
	done
}

saw() { # saw WORD: the marker read last has such a line
	case $_mseen in *" $1 "*) ;; *) return 1 ;; esac
}

is_settled() { # nothing more is to come after its exited line
	saw exited && saw output || return 1
	[ "$_mbefore" = - ] || [ "$_mafter" != - ] || [ "$_mstatus" = - ]
}

is_at_work() { # its supervisor, or until the exit is recorded anything that it started, lives
	[ "$_mboot" = "$_boot" ] || return 1
	alive "$_msup" || { ! saw exited && session_alive "$_mproc"; }
}

judge() { # judge ID N: _op, the state of that marker: read it, look at the processes, read it again
	while :; do
		_op=unreadable
		read_marker "$_base/markers/$1+$2" && [ "$_mid" = "$1" ] && [ "$_mgen" = "$2" ] || return 0
		for _op in fenced expired; do ! saw "$_op" || return 0; done
		_op=never_started
		! saw stopped || return 0
		_op=exited
		! is_settled || return 0
		_op=running
		! is_at_work || return 0
		_seen=$_mseen
		read_marker "$_base/markers/$1+$2" && [ "$_seen" = "$_mseen" ] || continue
		_op=interrupted
		if saw exited; then
			_op=exited
		elif [ "$_mboot" = "$_boot" ] && ! saw started; then
			_op=never_started
		fi
		return 0
	done
}

survey() { # survey ID: _gen _op _rec _att of its newest marker, and all of it as _m variables
	_gen=0 _op=absent _rec=- _att=- _bytes=-
	forget_marker
	while is_there "$_base/markers/$1+$((_gen + 1))"; do _gen=$((_gen + 1)); done
	if [ "$_gen" = 0 ]; then
		! is_overtaken "$1" || _op=expired
		return 0
	fi
	judge "$1" "$_gen"
	_rec=$_mrec _att=$_matt
	[ "$_op" != unreadable ] || [ -L "$_base/markers/$1+$_gen" ] || {
		hash_of "$_base/markers/$1+$_gen"
		_bytes=$_hash
	}
}

read_horizon() { # _horizon: the newest minted ID that was collected here
	_horizon=-
	[ -f "$_base/horizon" ] || return 0
	IFS=' ' read -r _horizon _rest <"$_base/horizon" || :
	is_minted "$_horizon" || _horizon=-
}

# --- the index of fingerprints -----------------------------------------------------------------------------------

look_twin() { # look_twin [tidy]: _entry none, own or other under _fp; a stale one is no entry, and tidied away
	_twin=- _twinop=- _entry=none
	while [ "$_fp" != - ] && is_there "$_base/index/$_fp"; do
		_entry=own
		[ -z "$_mark" ] || [ ! "$_base/index/$_fp" -ef "$_mark" ] || return 0
		read_id "$_base/index/$_fp" || :
		[ "$_mid" != "$_id" ] || return 0
		_entry=none _other=$_mid
		if [ -n "$_other" ]; then
			survey "$_other"
			case $_op in
			absent | fenced | unreadable) _entry=other ;;
			*) [ "$_gen" = 0 ] || [ "$_mfp" != "$_fp" ] || _entry=other ;;
			esac
			! saw acked || _entry=none
			if [ "$_entry" = other ]; then
				_twin=$_other _twinop=$_op
				return 0
			fi
		fi
		[ $# -gt 0 ] || return 0
		drop_entry "$_other" || refuse bad_store "$_base/index/$_fp cannot be taken away"
	done
}

drop_entry() { # drop_entry ID: takes the entry under _fp away by a name of its own; another operation's goes back
	mv -- "$_base/index/$_fp" "$_spool.entry" 2>/dev/null || ! is_there "$_base/index/$_fp" || return 1
	is_there "$_spool.entry" || return 0
	read_id "$_spool.entry" || :
	[ "$_mid" = "$1" ] || ln -- "$_spool.entry" "$_base/index/$_fp" 2>/dev/null || :
	litter "$_spool.entry"
}

take_entry() { # takes the index entry of the fingerprint, unless a second effect is meant; false for a twin
	[ -z "$_again" ] || return 0
	while :; do
		look_twin tidy
		case $_entry in own) return 0 ;; other) return 1 ;; esac
		ln -- "$_mark" "$_base/index/$_fp" 2>"$_err" || :
		is_there "$_base/index/$_fp" || return 2
	done
}

# --- the store ---------------------------------------------------------------------------------------------------

open_store() { # the folders that an acting verb needs; _fault says what is wrong with them
	if ! is_there "$_base/spool"; then
		command -v mkdir >/dev/null || _fault='no_tool mkdir is missing on the host'
		[ -z "$_fault" ] || return 0
		_why=$(mkdir -p -- "$_base/markers" "$_base/index" "$_base/outputs" "$_base/spool" 2>&1) || {
			_fault="no_store ${_why%%"$_nl"*}"
			case $_why in *'No space'* | *uota*) _fault=no_space${_fault#no_store} ;; esac
			return 0
		}
		_why=$(ls -ld -- "$_root" "$_base") || :
		case $_nl$_why in *"$_nl"d???[!-]* | *"$_nl"d????[!-]* | *"$_nl"d?????[!-]*) _fault="bad_store $_root is open to others" ;; esac
	fi
	for _folder in "$_root" "$_base" "$_base/markers" "$_base/index" "$_base/outputs" "$_base/spool"; do
		is_folder "$_folder" || _fault="bad_store $_folder is a link, or not a folder of this account"
	done
	_spool=$_base/spool/$_own _err=$_spool.err
	litter "$_err"
	[ -n "$_fault" ] || put "$_nl" 2>/dev/null >"$_err" || diagnose
}

open_refuge() { # a spool for a command that only reads, where the store is full or cannot be written
	for _folder in /dev/shm /tmp /var/tmp; do
		mkdir -m 700 -- "$_folder/sshop-$_own" 2>/dev/null || continue
		_refuge=$_folder/sshop-$_own
		_spool=$_refuge/$_own _err=$_refuge/$_own.err
		litter "$_err"
		return
	done
	_refuge=
}

is_reading() { # the request is one that claims nothing
	[ "$_verb" = probe ] || [ "$_verb.$_cat" = run.read_only ]
}

refuse_fault() { # what was wrong with the store, for all that need one
	[ -z "$_fault" ] || { [ -n "$_refuge" ] && is_reading; } || refuse "${_fault%% *}" "${_fault#* }"
}

read_store() { # _store and _format; false where there is no store
	_store=- _format=1
	[ -f "$_base/store" ] && [ ! -L "$_base/store" ] || return 1
	IFS=' ' read -r _word _format _store _rest <"$_base/store" || :
	[ "$_word.$_rest" = 'sshop-store.;' ] || _format=0
}

make_store() { # gives the store its identity: durable under one name before it stands under the other
	! read_store || return 0
	need ln
	litter "$_spool.store"
	put "sshop-store 1 st_$_nonce ;$_nl" 2>/dev/null >"$_spool.store" || refuse_disk
	is_there "$_base/store.made" || ln -- "$_spool.store" "$_base/store.made" 2>"$_err" || :
	[ -f "$_base/store.made" ] || refuse_disk
	sync_files "$_base/store.made" "$_base" "$_root" "${_root%/*}/" || refuse_disk
	is_there "$_base/store" || ln -- "$_base/store.made" "$_base/store" 2>"$_err" || :
	sync_files "$_base" && read_store || refuse_disk
}

sync_files() { # sync_files FILE...: makes them durable, as far as the host can: _grade; false where the disk fails
	if [ "$_grade" = file_synced ]; then
		if sync "$@" 2>"$_err"; then
			[ ! -s "$_err" ] || _grade=all_synced
			return 0
		fi
		because "$_err"
		case $_why in *'Input/output'* | *'No space'* | *uota*) return 1 ;; esac
		_grade=all_synced
	fi
	[ "$_grade" = unsynced ] || sync 2>/dev/null || _grade=unsynced
}

# --- the command -------------------------------------------------------------------------------------------------

give_path() { # the PATH of the login
	if [ -n "$_path" ]; then PATH=${_path#=}; else unset PATH; fi
}

restore() { # gives the command what the login gave
	trap - HUP INT QUIT PIPE TERM
	umask "$_umask"
	give_path
	if [ -n "$_locale" ]; then LC_ALL=${_locale#=}; else unset LC_ALL; fi
}

become() { # become CLASSES ITEM...: this process becomes the command of the items of those classes
	_class=$1 _left=$(($# - 1)) _env=
	shift
	stat_of self
	put "$_pid:$_start$_nl" 2>/dev/null >"$_spool.pid" || :
	case $_class.$_claim in
	*a*.rec_*)
		note "process pid=$_pid:$_start${_as:+ user=$_as}"
		# Whoever saw the supervisor dead and no such line may have said so: then nothing is to run.
		stat_of self
		[ "$_ppid" = "$$" ] || exit 125
		;;
	esac
	restore
	exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&-
	while [ "$_left" -gt 0 ]; do
		_left=$((_left - 1))
		case $1 in
		e*) [ -n "$_as" ] || export "${1#e}" ;;
		v*)
			[ -n "$_env" ] || set -- "$@" env
			_env=1
			set -- "$@" "${1#v}"
			;;
		[$_class]*) set -- "$@" "${1#?}" ;;
		esac
		shift
	done
	exec ${_setsid:+"$_setsid"} "$@"
}

signal() { # signal NAME PID:START: to the whole group, or to all that came of it where it is another user's
	if [ -z "$_as" ] || [ -n "$_trying" ]; then
		kill "-$1" "-${2%%:*}" 2>/dev/null || kill "-$1" "${2%%:*}" 2>/dev/null && return
		find_offspring "${2%%:*}" # it is gone, and left others that lead groups of their own
		kill "-$1" $_offspring 2>/dev/null
		return
	fi
	find_offspring "${2%%:*}"
	sudo -n -u "$_as" kill "-$1" $_offspring </dev/null >/dev/null 2>&1
}

find_offspring() { # find_offspring PID: _offspring, the processes of its session and all that came of them
	_offspring=" $1 " _found= _leader=$1
	while [ "$_found" != "$_offspring" ]; do
		_found=$_offspring
		set +f
		set -f -- /proc/[0-9]*
		for _proc; do
			stat_of "${_proc#/proc/}" || continue
			case $_offspring in
			*" $_pid "*) ;;
			*" $_ppid "* | *" $_sid "*) _offspring="$_offspring$_pid " ;;
			esac
		done
	done
	_offspring=${_offspring#" $_leader "}
}

watch() { # watch CLASSES: ends the command's group when its time is over
	trap '[ -z "$_nap" ] || kill -KILL "$_nap"; exit 0' USR1
	_nap= _naps=0 _patience=$_limit
	now
	_since=$_cs
	while is_patient; do # again, where something ended the sleep before its time
		_naps=$((_naps + 1))
		[ "$_naps" -lt 1000 ] || exit 0
		sleep $(((_limit * 1000 - _ms + 999) / 1000)) &
		_nap=$!
		wait "$_nap"
		_nap=
	done
	IFS= read -r _target <"$_spool.pid" && alive "$_target" || exit 0
	# From here on the supervisor waits for this process.
	put late >"$_spool.late"
	if ! signal TERM "$_target"; then # it may not be signalled, or ended by itself a moment ago: nobody ended it
		! alive "$_target" || put free >"$_spool.free"
		rm -f -- "$_spool.late"
		exit 0
	fi
	now
	case $1.$_claim in *a*.rec_*) note "killed by=timeout up=$_up" ;; esac
	_since=$_cs _naps=0 _patience=5
	while session_alive "$_target"; do
		is_patient || { signal KILL "$_target" && exit 0; } || exit 0
		nap
	done
}

perform() { # perform FD CLASSES ITEM...: runs the items of those classes under the limit: _status, _late
	_from=$1 _class=$2 _late=
	shift 2
	if [ -n "$_limit" ]; then
		[ ! -e "$_spool.late" ] && [ ! -e "$_spool.free" ] || rm -f -- "$_spool.late" "$_spool.free" "$_spool.pid"
		( # exec, since redirections around it would let it keep copies of the channel
			exec </dev/null >/dev/null 2>&1 3<&- 4<&- 5<&- 6<&-
			watch "$_class"
		) &
		_dog=$!
	fi
	[ -n "$_setsid" ] || ! (set -m) 2>/dev/null || set -m 2>/dev/null # zsh would die of it
	(become "$_class" "$@") <&"$_from" >>"$_to" 2>>"$_to2"
	_status=$?
	[ "$_status" -le 255 ] || _status=$((128 + _status % 128))
	litter "$_spool.pid"
	[ -n "$_limit" ] || return 0
	litter "$_spool.late" "$_spool.free"
	if [ -e "$_spool.late" ] || [ -e "$_spool.free" ]; then
		wait "$_dog"
		[ ! -e "$_spool.late" ] || _late=1
		[ ! -e "$_spool.free" ] || _mlimit=not_enforced
	else
		kill -USR1 "$_dog" 2>/dev/null || :
	fi
}

perform_as() { # perform_as FD CLASS ITEM...: the command or the condition, through sudo where it is another user's
	_from=$1 _class=$2
	shift 2
	case $_as.$_narrow.$_class in
	.*.? | *.1.c) perform "$_from" "$_class" "$@" ;;
	*.1.a) perform "$_from" "ta" tsudo t-n t-u "t$_as" t-- "$@" ;;
	*) perform "$_from" "t$_class" tsudo t-n t-u "t$_as" t-- t/bin/sh t-c "t$_child" tsh "$@" ;;
	esac
}

open_input() { # open_input ITEM...: descriptors for the command (5), its condition (3, 4, 6) and no name for them
	exec 3</dev/null 4</dev/null 5<"$_input" 6</dev/null
	if [ -n "$_as" ] && [ -z "$_narrow" ]; then
		write_child "$@"
		exec 3<"$_spool.child" 4<"$_spool.child" 6<"$_spool.child"
		[ "$_input" = /dev/null ] || cat <"$_input" 2>"$_err" >>"$_spool.child" || refuse_disk
		exec 5<"$_spool.child"
		rm -f -- "$_spool.child"
	fi
	[ "$_input" = /dev/null ] || rm -f -- "$_input"
}

write_child() { # write_child ITEM...: what the shell of the other user reads before the command does
	litter "$_spool.child"
	{
		[ -z "$_cwd" ] || write_lines "d $_cwd"
		for _item; do
			case $_item in e*) write_lines "e ${_item#e}" ;; esac
		done
		put "go$_nl"
	} 2>/dev/null >"$_spool.child" || refuse_disk
}

write_lines() { # write_lines TEXT: its lines, each but the first after a plus
	_rest=$1
	while :; do
		case $_rest in *"$_nl"*) ;; *) break ;; esac
		put "${_rest%%"$_nl"*}$_nl+"
		_rest=${_rest#*"$_nl"}
	done
	put "$_rest$_nl"
}

try_sudo() { # try_sudo ITEM...: sudo agrees, while nothing stands
	need sudo cat rm
	write_child "$@"
	exec 3<"$_spool.child"
	_kept=$_limit _limit=${_limit:-30} _to=/dev/null _to2=$_err _narrow= _trying=1
	perform 3 t tsudo t-n t-u "t$_as" t-- t/bin/sh t-c "t$_child" tsh ttrue "$@"
	[ "$_status" != 125 ] || refuse no_cwd "$_cwd cannot be entered by $_as"
	if [ "$_status" != 0 ] || [ -n "$_late" ]; then
		because "$_err"
		_narrow=1
		[ -z "$_late$_cwd$_given" ] || refuse no_become "$_why"
		perform 3 ta tsudo t-n t-l t-u "t$_as" t-- "$@"
		[ "$_status" = 0 ] || refuse no_become "$_why"
	fi
	_limit=$_kept _late= _trying=
}

# --- answers -----------------------------------------------------------------------------------------------------

send() { # send STREAM FROM COUNT: raw bytes of an output
	say data "stream=$1 offset=$2 bytes=$3"
	if [ "$2" = 0 ]; then
		head -c "$3" <"$_outputs.$1"
	else
		tail -c "+$(($2 + 1))" <"$_outputs.$1" | head -c "$3"
	fi 2>/dev/null
	_lead=$_nl
}

size_of() { # size_of FILE: _size
	_size=0
	for _path2 in "$1" "$1" "$1"; do # whatever killed a wc must not make an output seem empty
		[ -s "$_path2" ] || break
		! _size=$(wc -c <"$_path2") || break
		_size=0
	done
	_size=$((_size))
}

measure() { # _mout _mouts _merr _merrs: size and digest of the outputs as they are now
	size_of "$_outputs.out"
	_mout=$_size _hash=$_nothing
	[ "$_size" = 0 ] || hash_of "$_outputs.out" "$_size"
	_mouts=$_hash
	size_of "$_outputs.err"
	_merr=$_size _hash=$_nothing
	[ "$_size" = 0 ] || hash_of "$_outputs.err" "$_size"
	_merrs=$_hash
}

answer_result() { # answer_result OWN: the record of how it ended, from the _m variables, and its outputs
	_changed=-
	[ "$_mbefore" = - ] || _changed=1
	[ "$_mstatus" != - ] || _changed=0
	_text="gen=$_gen rec=$_rec att=$_matt own=$1 status=$_mstatus changed=$_changed killed=$_mkilled"
	_text="$_text before=$_mbefore after=$_mafter limit=$_mlimit ms=$_mms out=$_mout outsha=$_mouts"
	say result "$_text err=$_merr errsha=$_merrs sync=$_msync fp=$_mfp background=${_background:--}"
	if [ "$1" = 0 ]; then # something may have shortened them since: a promised byte that does not come cuts the answer
		size_of "$_outputs.out"
		[ "$_mout" -le "$_size" ] || _mout=$_size
		size_of "$_outputs.err"
		[ "$_merr" -le "$_size" ] || _merr=$_size
	fi
	[ "$_mout" -le "$_inline" ] || _mout=$_inline
	[ "$_merr" -le "$_inline" ] || _merr=$_inline
	[ "$_mout" = 0 ] || [ ! -f "$_outputs.out" ] || send out 0 "$_mout"
	[ "$_merr" = 0 ] || [ ! -f "$_outputs.err" ] || send err 0 "$_merr"
	say end
}

answer_stored() { # what the marker that was surveyed last says, and the end
	case $_op in
	exited)
		_outputs=$_base/outputs/$_rec
		saw output || measure
		answer_result 0
		leave
		;;
	running) ;;
	*) say "state op=$_op gen=$_gen rec=$_rec att=$_att fp=$_mfp ran=$_mran bytes=$_bytes msg=generation $_gen is $_op" ;;
	esac
	finish
}

attach() { # waits for the operation that runs here, as long as the request is patient
	say "running gen=$_gen rec=$_rec att=$_att"
	now
	_since=$_cs _naps=0
	while [ "$_op" = running ] && is_patient; do
		nap
		survey "$_id"
	done
}

is_patient() { # there is time left, counted from _since
	case $_patience in '' | -) return 0 ;; esac
	elapsed "$_since"
	[ "$_ms" -lt $((_patience * 1000)) ]
}

nap() { # sleeps, longer the more often it did
	_naps=$((_naps + 1))
	[ "$_naps" -lt 100 ] && sleep "0.0$((_naps > 20 ? 9 : 3))" 2>/dev/null || sleep 1 || leave
}

greet() { # the first line
	read_horizon
	read_store || :
	case $_verb.$_cat in run.read_only) ;; run.-) refuse bad_request 'no category' ;; run.* | fence.* | cancel.*) make_store ;; esac
	for _word in $_witnesses; do
		[ "$_witness" != - ] || _witness=ok
		is_there "$_base/markers/$_word+1" || is_overtaken "$_word" || _witness=gone
	done
	look_twin
	_op=absent _gen=0 _rec=- _att=-
	[ "$_id" = - ] || survey "$_id"
	_text="store=$_store format=$_format machine=$_machine boot=$_boot grade=$_grade horizon=$_horizon digest=$_digest"
	_text="$_text up=$_born op=$_op gen=$_gen rec=$_rec att=$_att twin=$_twin twinop=$_twinop witness=$_witness"
	say "hello $_text user=${LOGNAME:-${USER:--}}"
}

check_promises() { # refuses where this is not the store, or not the past, that the runner knows
	[ "$_format" = 1 ] || refuse bad_format "the store is of format $_format"
	[ -z "$_promised" ] || [ "$_promised" = "$_store" ] || refuse store_changed "the store is $_store"
	[ "$_witness" != gone ] || refuse rolled_back 'a witness is gone'
	[ -n "$_seen_gen" ] || return 0
	is_there "$_base/markers/$_id+$_seen_gen" || refuse rolled_back "the claim of generation $_seen_gen is gone"
	read_marker "$_base/markers/$_id+$_seen_gen" || return 0
	[ "$_mrec" = "$_seen_rec" ] || refuse rolled_back "generation $_seen_gen is of $_mrec"
}

# --- claiming ----------------------------------------------------------------------------------------------------

write_record() { # write_record WORD...: the record of generation _next, whole and padded, for a link to give it out
	_mark=$_spool.mark$_next _record="$* sup=$_sup" _padding=$_nl
	litter "$_mark"
	while [ ${#_padding} -lt 4096 ]; do _padding=$_padding$_padding; done
	put "$_padding" 2>/dev/null >"$_mark" || refuse_disk
	exec 8<>"$_mark"
	note "sshop-marker 1 id=$_id gen=$_next" && note "$_record" || refuse_disk
}

owns() { # owns PATH: it is the record of this very process, by what stands in it
	[ -f "$1" ] && [ ! -L "$1" ] || return 1
	{
		IFS= read -r _text && IFS= read -r _text
	} 2>/dev/null <"$1" || return 1
	[ "$_text" = "$_record ;" ]
}

claim() { # gives the record the marker's name; false where another has it
	_marker=$_base/markers/$_id+$_next
	is_there "$_marker" || ln -- "$_mark" "$_marker" 2>"$_err" || :
	if ! owns "$_marker"; then
		if is_there "$_marker"; then
			read_marker "$_marker" || _claim=-
			return 1
		fi
		[ ! "$_base/index/$_fp" -ef "$_mark" ] || drop_entry "$_id" || :
		refuse_disk
	fi
	_gen=$_next _rec=rec_$_nonce _att=$_attempt _claim=rec_$_nonce
}

may_go_on() { # the generation after the newest may be claimed, by the state of that and the ground of the request
	_next=$((_gen + 1))
	[ "$_most" -ge "$_next" ] || return 1
	case $_op.$_ground.$_cat in
	absent.* | never_started.* | interrupted.decision.* | interrupted.converges.convergent) ;;
	exited.converges.convergent) [ "$_mstatus" != 0 ] && [ "$_mstatus" != - ] ;;
	unreadable.decision.*) [ "$_bytes" = "$_decided" ] ;;
	*) false ;;
	esac
}

is_same_request() { # the marker read last is of the same plain frames; they stand beside it where no digest can be made
	[ "$_mfp" = "$_fp" ] || return 1
	[ -z "$_hasher" ] && [ -f "$_base/outputs/$_mrec.plain" ] || return 0
	while IFS= read -r _text <&3; do
		IFS= read -r _line2 <&4 && [ "$_text" = "$_line2" ] || return 1
	done 3<"$_spool.plain" 4<"$_base/outputs/$_mrec.plain"
}

run() { # run ITEM...: claims, runs, records, answers
	need ln head wc ${_limit:+sleep}
	while :; do
		survey "$_id"
		case $_op in
		absent | fenced | expired | unreadable) ;;
		*) is_same_request || refuse key_conflict "the marker's fingerprint is $_mfp" ;;
		esac
		if ! may_go_on; then
			case $_op in
			expired | fenced | interrupted | unreadable) refuse "$_op" "generation $_gen is $_op" ;;
			running)
				attach
				[ "$_op" = running ] || continue
				;;
			esac
			answer_stored
		fi
		is_weak && refuse weak_grade "the host can do $_grade"
		enter "$@"
		write_record "claimed rec=rec_$_nonce att=$_attempt fp=$_fp boot=$_boot up=$_born at=$_clock cat=$_cat" \
			"sync=$_grade ground=$_ground"
		[ -n "$_hasher" ] || ln -- "$_spool.plain" "$_base/outputs/rec_$_nonce.plain" 2>"$_err" || refuse_disk
		take_entry || {
			[ "$_entry" != none ] || refuse_disk
			survey "$_id"
			refuse unresolved_twin "operation $_twin stands under this fingerprint"
		}
		! claim || run_claimed "$@"
	done
}

enter() { # enter ITEM...: the working folder and sudo, while nothing stands
	if [ -n "$_as" ]; then
		cd -- "${HOME:-/}" 2>/dev/null || cd /
		try_sudo "$@"
		return
	fi
	case $_cwd in
	'') _folder=${HOME:-/} ;;
	/*) _folder=$_cwd ;;
	*) _folder=${HOME:-}/$_cwd ;;
	esac
	cd -- "$_folder" 2>/dev/null || refuse no_cwd "$_folder cannot be entered"
}

stop() { # stop BY CODE TEXT: the claim stands and will never start
	note "stopped by=$1"
	_gen=$_next _rec=$_claim _op=never_started
	refuse "$2" "$3"
}

open_outputs() { # open_outputs BASE: the files of the outputs
	_outputs=$1 _to=/dev/null _to2=/dev/null
	put '' 2>/dev/null >"$1.out" && put '' 2>/dev/null >"$1.err"
}

run_claimed() { # run_claimed ITEM...: everything between the claim and the end
	sync_files "$_marker" "$_base/markers" "$_base/index" || stop disk no_store "$_why"
	! is_weak || stop grade weak_grade "the host can do $_grade"
	[ "$_grade" = "$_hoped" ] || note "synced as=$_grade"
	say "claimed gen=$_gen rec=$_rec sync=$_grade"
	read_horizon
	if is_overtaken "$_id"; then
		note "expired up=$_born"
		_op=expired
		refuse expired "the horizon is $_horizon"
	fi
	take_entry || stop "$_twin" unresolved_twin "operation $_twin stands under this fingerprint"
	open_outputs "$_base/outputs/$_rec" || stop disk no_space 'the files of the outputs cannot be made'
	forget_marker
	_mfp=$_fp _matt=$_attempt _msync=$_grade
	open_input "$@"
	if [ -n "$_condition" ]; then
		perform_as 3 c "$@"
		[ -z "$_late" ] && [ "$_status" -lt 126 ] || stop condition condition_failed "its status is $_status"
		_mbefore=$_status
		note "condition when=before status=$_status"
	fi
	! is_there "$_outputs.cancel" || stop cancel fenced 'it was cancelled'
	now
	_since=$_cs
	if [ "$_mbefore" != 0 ]; then
		note "started up=$_up" || stop disk no_space 'the marker cannot be written'
		say "started gen=$_gen rec=$_rec"
		_to=$_outputs.out _to2=$_outputs.err
		perform_as 5 a "$@"
		_mstatus=$_status
		[ -z "$_late" ] || _mkilled=timeout
		if is_there "$_outputs.cancel"; then
			_mkilled=cancel
			note "killed by=cancel up=$_up" || :
		fi
	fi
	elapsed "$_since"
	_mms=$_ms _ended=enforced
	[ "$_mlimit" = "$_ended" ] || _ended="$_mlimit limit=$_mlimit"
	note "exited status=$_mstatus up=$_up ms=$_ms${_ended#enforced}" || _msync=unsynced
	set -- "$_marker" -- "$@"
	[ ! -s "$_outputs.out" ] && [ ! -s "$_outputs.err" ] && [ -z "$_condition" ] || sync_files "$_marker" || :
	measure
	note "output out=$_mout:$_mouts err=$_merr:$_merrs" || :
	shift 2
	if [ "$_mbefore" != - ] && [ "$_mstatus" != - ]; then
		_to=/dev/null _to2=/dev/null
		perform_as 4 c "$@"
		_mafter=$_status
		note "condition when=after status=$_status" || :
	fi
	set -- "$_marker"
	[ "$_mout" = 0 ] || set -- "$@" "$_outputs.out"
	[ "$_merr" = 0 ] || set -- "$@" "$_outputs.err"
	[ $# = 1 ] || set -- "$@" "$_base/outputs"
	sync_files "$@" || _msync=unsynced
	answer_own
	if IFS= read -r _line && [ "$_line" = ack ]; then
		now
		note "acked up=$_up"
		[ -n "$_again" ] || drop_entry "$_id" || :
		say "acked rec=$_rec"
	fi
	leave
}

answer_own() { # the result of this request's own command, and what it left that nobody needs
	[ "$_mstatus" = - ] || ! IFS=: read -r _leader _rest <"$_spool.pid" ||
		! kill -0 "-$_leader" 2>/dev/null || _background=1
	[ -n "$_background" ] || [ -s "$_outputs.out" ] || litter "$_outputs.out"
	[ -n "$_background" ] || [ -s "$_outputs.err" ] || litter "$_outputs.err"
	litter "$_outputs.cancel"
	answer_result 1
}

run_freely() { # run_freely ITEM...: a command that only reads: claims nothing and leaves nothing
	need head wc ${_limit:+sleep}
	forget_marker
	_gen=0 _rec=- _mfp=$_fp _matt=$_attempt _msync=unsynced
	enter "$@"
	litter "$_spool.out"
	open_outputs "$_spool" || refuse_disk
	open_input "$@"
	now
	_since=$_cs
	say 'started gen=0 rec=-'
	_to=$_outputs.out _to2=$_outputs.err
	perform_as 5 a "$@"
	_mstatus=$_status
	elapsed "$_since"
	_mms=$_ms
	[ -z "$_late" ] || _mkilled=timeout
	measure
	answer_own
	leave
}

# --- the other verbs ---------------------------------------------------------------------------------------------

inquire() { # what is known; it changes nothing
	survey "$_id"
	[ "$_op" != running ] || attach
	answer_stored
}

look_below() { # _mran: 0 where nothing of the operation was ever started, by the markers of all its generations
	_found=$_op _left=$_gen _ran=0
	while [ "$_left" -gt 0 ]; do
		judge "$_id" "$_left"
		[ "$_op" = never_started ] || _ran=1
		_left=$((_left - 1))
	done
	_op=$_found _mran=$_ran
}

fence() { # what has not started never will
	need ln
	while :; do
		survey "$_id"
		case $_op in
		absent | never_started | interrupted)
			_next=$((_gen + 1))
			look_below
			write_record "fenced rec=rec_$_nonce att=$_attempt boot=$_boot up=$_born at=$_clock ran=$_mran"
			claim || continue
			;;
		fenced) ;;
		running)
			attach
			[ "$_op" != running ] || answer_stored
			continue
			;;
		*) answer_stored ;;
		esac
		sync_files "$_base/markers/$_id+$_gen" "$_base/markers" || refuse no_store "$_why"
		say "fenced gen=$_gen rec=$_rec ran=$_mran"
		finish
	done
}

cancel() { # what has not started never will; what runs is ended
	need sleep rm
	while :; do
		survey "$_id"
		[ "$_op" = running ] || break
		put '' 2>/dev/null >>"$_base/outputs/$_rec.cancel" || refuse_disk
		# Where nobody is left to record an end, what it left behind is all that still runs of it.
		if alive "$_mproc" || { ! alive "$_msup" && session_alive "$_mproc"; }; then
			_as=$_muser _target=$_mproc
			signal TERM "$_target" || {
				rm -f -- "$_base/outputs/$_rec.cancel" # nobody ended it, whatever its end will be
				session_alive "$_target" || continue
				refuse no_become "sudo does not let $_as be signalled"
			}
			say "cancelling gen=$_gen rec=$_rec"
			_patience=${_patience:-5}
			attach
			if [ "$_op" = running ] && [ "$_patience" != 0 ]; then
				! session_alive "$_target" || signal KILL "$_target"
				attach
			fi
			answer_stored
		fi
		_count=$((_count + 1))
		if [ "$_count" -gt 20 ]; then # its condition is being asked; it finds the cancel before it starts
			say "running gen=$_gen rec=$_rec att=$_att"
			finish
		fi
		sleep 1
	done
	case $_op in absent | never_started | fenced) fence ;; esac
	answer_stored
}

ack() { # the runner has the result in its ledger: the marker says so, and the entry goes
	survey "$_id"
	while [ "$_gen" -gt 0 ] && [ "$_mrec" != "$_result_of" ]; do
		_gen=$((_gen - 1))
		judge "$_id" "$_gen"
	done
	[ "$_gen" -gt 0 ] || refuse no_record "no marker of $_result_of"
	_rec=$_mrec _att=$_matt
	[ "$_op" != running ] || answer_stored
	if ! saw acked; then
		exec 8<>"$_base/markers/$_id+$_gen"
		while [ "$_mlines" -gt 0 ]; do
			IFS= read -r _line2 <&8
			_mlines=$((_mlines - 1))
		done
		now
		note "acked up=$_up" || refuse_disk
	fi
	[ "$_fp" != - ] || _fp=$_mfp
	_gen2=$_gen
	look_twin
	_gen=$_gen2
	[ "$_entry" != own ] || drop_entry "$_id" || :
	say "acked rec=$_result_of"
	finish
}

fetch() { # the bytes of an output; with patience, as they grow
	set -- $_range
	case $#.$1 in 3.out | 3.err) ;; *) refuse bad_request O ;; esac
	is_number "$2" && { [ "$3" = - ] || is_number "$3"; } || refuse bad_request O
	survey "$_id"
	_outputs=$_base/outputs/$_rec _from=$2 _naps=0
	_size=0
	[ "$1" = out ] && _text=$_mout || _text=$_merr
	[ -f "$_outputs.$1" ] || [ "$_text" = 0 ] || refuse no_output "no $1 of $_rec"
	now
	_since=$_cs
	while :; do
		survey "$_id"
		size_of "$_outputs.$1"
		[ "$1" = out ] && _text=$_mout || _text=$_merr
		[ "$_text" = - ] || [ "$_size" -le "$_text" ] || _size=$_text
		_count=$((_size - _from))
		[ "$3" = - ] || [ "$_count" -le $(($2 + $3 - _from)) ] || _count=$(($2 + $3 - _from))
		if [ "$_count" -gt 0 ]; then
			send "$1" "$_from" "$_count"
			_from=$((_from + _count))
		fi
		[ -n "$_patience" ] && [ "$_op" = running ] && [ "$_from" != "$2$3" ] && is_patient || finish
		nap
	done
}

# --- the request -------------------------------------------------------------------------------------------------

act() { # act ITEM...: the request arrived whole
	exec 7>&-
	refuse_fault
	[ "$_verb" = probe ] || check_promises
	case $_verb in
	run | probe)
		[ -n "$_command" ] || refuse bad_request 'no command'
		check_fingerprint
		! is_reading || run_freely "$@"
		run "$@"
		;;
	esac
	"$_verb"
}

sum_frames() { # the digest of the plain frames; made while the runner still makes its dispatch durable
	litter "$_spool.sum"
	$_hasher <"$_spool.plain" >"$_spool.sum" 2>"$_err"
}

check_fingerprint() { # what arrived must be what the runner says it sent
	[ -n "$_hasher" ] || return 0
	[ -s "$_spool.sum" ] || sum_frames || refuse_disk
	IFS=' ' read -r _hash _rest <"$_spool.sum"
	[ "$_hash" = "$_fp" ] || refuse bad_fingerprint "what arrived is $_hash"
}

take_input() { # take_input BYTES: standard input, whole
	[ "$1" = "$_in_bytes" ] || refuse bad_request 'not the length that was promised'
	need head wc rm
	_input=$_spool.in
	litter "$_input"
	head -c "$1" 2>"$_err" >"$_input" || refuse_disk
	size_of "$_input"
	[ "$_size" = "$1" ] || refuse bad_input "$_size bytes arrived"
	if [ "$_in_hash" != secret ] && [ -n "$_hasher" ]; then
		hash_of "$_input"
		[ "$_hash" = "$_in_hash" ] || refuse bad_input "its digest is $_hash"
	fi
	_in_bytes=
	say "spooled bytes=$1"
}

serve() { # reads one request, a line at a time, and acts when all of it is there
	IFS= read -r _line || return 0
	_rest=${_line#* }
	_nonce=${_rest%% *} _verb=${_rest#* }
	case $_line.${#_nonce} in
	"sshop1 $_nonce $_verb.32") ;;
	*) _nonce=- ;;
	esac
	case $_nonce in *[!0-9a-f]*) _nonce=- ;; esac
	[ "$_nonce" != - ] || refuse bad_request 'no request of this protocol'
	know_machine
	_base=$_root/$_machine
	exec 7>/dev/null
	case $_verb in
	hello | inquire | fetch) ;;
	fence | cancel | ack) open_store ;;
	run | probe)
		open_store
		[ -z "$_fault" ] || open_refuge
		[ -n "$_fault" ] && [ -z "$_refuge" ] || exec 7>"$_spool.plain"
		litter "$_spool.plain"
		;;
	*) refuse bad_request 'a verb that this guard does not know' ;;
	esac
	_lines=0
	while :; do
		_lines=$((_lines + 1))
		IFS= read -r _line || leave
		_bulk=$((_bulk + ${#_line}))
		_value=${_line#??}
		case $_line in
		[lh]' '* | i | [+.]*) # goes on with what was begun
			case $_kind.$_line in
			.[!.]* | d.[lih]*) refuse bad_request 'nothing that could go on was begun' ;;
			esac
			;;
		*)
			[ ${#_item} -le 131000 ] && [ "$_bulk" -le 2000000 ] || refuse bad_request 'too long'
			case $_kind in
			[ev]) set -- "$_kind$_item" "$@" ;;
			[ac]) set -- "$@" "$_kind$_item" ;;
			d) _cwd=$_item ;;
			esac
			_kind= _item= _hidden=
			;;
		esac
		_plain=
		case $_stage.$_line in
		?'.l '*) _item=$_item$_value _plain=$_kind ;;
		?.i) _item=$_item$_id _plain=$_kind ;;
		?'.h '*) _hidden=1 _plain=$_kind ;;
		?.+*) _item=$_item$_nl${_line#+} _plain=$_kind ;;
		?..*)
			case $_hidden in
			'') refuse bad_request 'a value that nothing asked for' ;;
			1) _item=$_item${_line#.} _hidden=2 ;;
			2) _item=$_item$_nl${_line#.} ;;
			esac
			;;
		1'.a '*)
			case $_command.$_value in .-* | .) refuse bad_request 'no name of a command' ;; esac
			_kind=a _item=$_value _plain=1 _command=1
			;;
		1'.c '*) _kind=c _item=$_value _condition=1 ;;
		1'.d '*) _kind=d _item=$_value _plain=1 ;;
		1'.e '*=*)
			is_name "${_value%%=*}" || refuse bad_request 'no name of a variable'
			_kind=e _item=$_value _plain=1 _given=1
			! is_touchy "${_value%%=*}" || _kind=v
			;;
		1'.s '*)
			is_name "$_value" && ! is_touchy "$_value" || refuse bad_request 'no name for a secret variable'
			_secrets="$_secrets $_value" _plain=1 _given=1
			;;
		1'.u '*)
			case $_value in '' | -* | *[!A-Za-z0-9._-]*) refuse bad_request 'no name of a user' ;; esac
			_as=$_value _plain=1
			;;
		1'.z '*' '*) _in_bytes=${_value%% *} _in_hash=${_value#* } _plain=1 ;;
		1'.I '*) is_id "$_value" && _id=$_value || refuse bad_request 'no operation ID' ;;
		1'.T '*) is_id "$_value" && _attempt=$_value || refuse bad_request 'no attempt ID' ;;
		1'.F '*)
			case $_value in '' | *[!0-9a-f]*) refuse bad_request F ;; esac
			_fp=$_value
			;;
		1'.D '*) case $_value in *[!0-9A-Za-z:.+-]*) ;; *) _clock=$_value ;; esac ;;
		1'.K read_only' | 1'.K convergent' | 1'.K append_only' | 1'.K destructive') _cat=$_value ;;
		1'.G '*' '*)
			_most=${_value%% *} _ground=${_value#* } _decided=${_value##* }
			_ground=${_ground%% *}
			is_number "$_most" || refuse bad_request G
			case $_ground in first | converges | decision) ;; *) refuse bad_request G ;; esac
			;;
		1'.C '*' '*)
			_seen_gen=${_value%% *} _seen_rec=${_value#* }
			is_number "$_seen_gen" || refuse bad_request C
			;;
		1'.S '*) _promised=$_value ;;
		1'.W '*) is_id "$_value" && _witnesses="$_witnesses $_value" || refuse bad_request W ;;
		1.N) _again=1 ;;
		1'.Y file_synced' | 1'.Y all_synced' | 1'.Y unsynced') _weakest=$_value ;;
		1'.L '*) is_number "$_value" && _limit=$_value || refuse bad_request L ;;
		1'.M '*) is_number "$_value" && _inline=$_value || refuse bad_request M ;;
		1'.P '*) is_number "$_value" || [ "$_verb.$_value" = fetch.- ] && _patience=$_value || refuse bad_request P ;;
		1'.A '*) _result_of=$_value ;;
		1'.O '*) _range=$_value ;;
		1.'?')
			[ "$_verb" = hello ] || [ "$_id" != - ] || refuse bad_request 'no operation ID'
			refuse_fault
			greet
			[ "$_verb" != hello ] || finish
			case $_verb.$_command.$_fault in run.1. | probe.1.) [ -z "$_hasher" ] || sum_frames || : ;; esac
			_stage=2
			;;
		2'.x '*)
			case $_secrets in " $_value" | " $_value "*) ;; *) refuse bad_request 'not the secret that was promised' ;; esac
			_secrets=${_secrets#" $_value"} _kind=e _item=$_value= _hidden=1
			;;
		2'.b '*) take_input "$_value" ;;
		2".go $_lines")
			[ -z "$_secrets$_in_bytes" ] || refuse bad_request 'what was promised did not come'
			act "eOPERATION_ID=$_id" "$@"
			;;
		*) refuse bad_request "line $((_lines + 1)) is not known, or not in its place" ;;
		esac
		case $_plain in '' | c) ;; *) put "$_line$_nl" >&7 || _fault='no_space the request cannot be kept' ;; esac
	done
}

main() {
	_path=${PATH+=$PATH}
	PATH=/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin${_path:+:${_path#=}}
	# yash cannot hold a byte that is no character; any other shell will do.
	for _shell in ${YASH_VERSION:+/bin/dash /bin/bash /bin/ksh /bin/mksh /bin/zsh}; do
		[ -x "$_shell" ] || continue
		give_path
		exec "$_shell" "$0" "$@"
	done
	IFS=' ' _umask=
	_tab='	' _nl='
'
	[ ! -r /proc/self/status ] ||
		while IFS=$_tab read -r _line _umask; do [ "$_line" != Umask: ] || break; done </proc/self/status
	case $_umask in 0[0-7]*) ;; *) _umask=$(umask) ;; esac
	umask 077
	_locale=${LC_ALL+=${LC_ALL-}} LC_ALL=C
	export LC_ALL
	unset CDPATH
	# All of them, since mksh goes on where it meets one that is not set.
	_lead=$_nl _nonce=- _id=- _attempt=- _fp=- _clock=- _cat=- _most=0 _ground=- _decided=- _seen_gen= _seen_rec=
	_promised= _witnesses= _witness=- _again= _weakest=unsynced _limit= _inline=0 _patience= _result_of= _range=
	_command= _condition= _cwd= _as= _narrow= _trying= _given= _secrets= _in_bytes= _in_hash= _input=/dev/null _kind= _item=
	_hidden= _stage=1 _bulk=0 _fault= _refuge= _litter= _err= _claim=none _op=absent _gen=0 _rec=- _bytes=- _twin=-
	_twinop=- _entry=none _mark= _background= _horizon=- _store=- _format=1 _boot= _space=- _start=- _leader=0 _att=
	_base= _born= _changed= _char= _class= _count=0 _cs=0 _dog= _ended= _env= _found= _from= _gen2= _hash=
	_kept= _late= _left=0 _line= _line2= _lines=0 _machine= _marker= _mine= _ms=0 _nap= _naps=0 _next=0 _offspring= _ran=
	_other= _outputs= _own= _padding= _pid= _plain= _ppid= _record= _rest= _seen= _sid= _since=0 _size=0 _spool=
	_stat= _status= _sup= _target= _text= _theirs= _to= _to2= _up= _value= _value2= _verb= _when= _why=
	forget_marker
	_nothing=e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
	case $0 in /*/guard/?*) _root=${0%/guard/*} ;; *) refuse bad_request 'not started from a store' ;; esac
	find_tools
	stat_of $$ || _tty=0 _start=-
	if [ "$_tty" != 0 ] && [ -n "$_setsid" ]; then # a terminal that goes away would take the command with it
		(PATH=${_path#=} exec "$_setsid" /bin/sh "$0" "$@")
		exit
	fi
	trap '' HUP INT QUIT PIPE TERM
	serve
}

main "$@"
