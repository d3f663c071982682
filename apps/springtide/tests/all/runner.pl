#!/usr/bin/perl
# A runner of commands: the arguments of `sh` are a command line, and its value is the output.
# It also has the functions of the conformance test.
use strict;
use warnings;

# The protocol's streams are apart from those that commands have.
open(my $in,  '<&', \*STDIN)  or die "input: $!";
open(my $out, '>&', \*STDOUT) or die "output: $!";
open(STDIN, '<', '/dev/null') or die "input: $!";
open(STDOUT, '>&', \*STDERR)  or die "output: $!";
binmode($_) for $in, $out;
$| = 1;
select((select($out), $| = 1)[0]);

# --- frames ---

my ($data, $at);

sub take { my ($count) = @_; $at += $count; return substr($data, $at - $count, $count) }

sub value {
    my $code = ord take(1);
    return $code if $code < 0x80;
    return $code - 256 if $code >= 0xe0;
    return entries($code & 15) if $code < 0x90;
    return items($code & 15) if $code < 0xa0;
    return take($code & 31) if $code < 0xc0;
    return undef if $code == 0xc0;
    return $code - 0xc2 if $code == 0xc2 || $code == 0xc3;
    my @sizes = ('C', 1, 'n', 2, 'N', 4);
    my $number = sub { my $at = 2 * $_[0]; unpack($sizes[$at], take($sizes[$at + 1])) };
    return take($number->($code - 0xc4)) if $code >= 0xc4 && $code <= 0xc6;
    return $number->($code - 0xcc) if $code >= 0xcc && $code <= 0xce;
    return unpack('Q>', take(8)) if $code == 0xcf;
    return take($number->($code - 0xd9)) if $code >= 0xd9 && $code <= 0xdb;
    return items($number->($code - 0xdb)) if $code == 0xdc || $code == 0xdd;
    return entries($number->($code - 0xdd)) if $code == 0xde || $code == 0xdf;
    die sprintf('no value begins with %x', $code);
}

sub items { my ($count) = @_; return [map { scalar value() } 1 .. $count] }

sub entries {
    my ($count) = @_;
    my %map;
    for (1 .. $count) { my $key = value(); $map{$key} = value() }
    return \%map;
}

sub receive {
    read($in, my $head, 4) == 4 or exit 0;
    my $length = unpack('N', $head);
    $data = '';
    while (length($data) < $length) {
        read($in, $data, $length - length($data), length($data)) or exit 0;
    }
    $at = 0;
    my ($kind, $fields) = %{value()};
    exit 0 if $kind eq 'end';
    return ($kind, $fields);
}

sub int_  { return pack('CQ>', 0xcf, $_[0]) }
sub str   { return pack('CN', 0xdb, length $_[0]) . $_[0] }
sub bin   { return pack('CN', 0xc6, length $_[0]) . $_[0] }
sub nil   { return "\xc0" }
sub array { return pack('CN', 0xdd, scalar @_) . join('', @_) }

sub map_ {
    my (@pairs) = @_;
    my $text = pack('Cn', 0xde, @pairs / 2);
    while (my ($key, $value) = splice(@pairs, 0, 2)) { $text .= str($key) . $value }
    return $text;
}

sub send_frame {
    my ($kind, @fields) = @_;
    my $text = map_($kind, map_(@fields));
    print {$out} pack('N', length $text) . $text;
}

# --- tasks ---

my @tasks;

sub wait_for {
    my ($answer) = @_;
    while (1) {
        my ($kind, $fields) = receive();
        return $fields if $kind eq $answer;
        die "the task is cancelled\n" if $kind eq 'cancel';
        run($fields) if $kind eq 'task';
    }
}

sub spawn {
    my ($number, $name, $arguments) = @_;
    my $call = map_(
        function => map_(object => nil(), name => str($name)),
        arguments => bin($arguments), buffers => array(), objects => array(),
    );
    send_frame('spawn', task => int_($tasks[-1]), child => int_($number), call => $call);
}

sub join_child {
    my ($number) = @_;
    send_frame('join', task => int_($tasks[-1]), child => int_($number));
    my $outcome = wait_for('joined')->{outcome};
    die "$outcome->{failure}{message}\n" if $outcome->{failure};
    return $outcome->{result}{value};
}

my %functions = (
    'check:echo' => sub { return ($_[0]{arguments}, @{$_[0]{buffers}}) },
    'check:fail' => sub { die +{type => 'Refused', message => $_[0]{arguments}} },
    'check:spawn' => sub {
        spawn($_, 'check:echo', $_[0]{arguments}) for 0, 1;
        join_child(1);
        return join_child(0);
    },
    'check:get' => sub {
        send_frame('get', task => int_($tasks[-1]), object => int_($_[0]{objects}[0]));
        return wait_for('object')->{data};
    },
    'check:print' => sub { print "$_[0]{arguments}\n"; return $_[0]{arguments} },
    'sh' => sub {
        open(my $pipe, '-|', 'sh', '-c', $_[0]{arguments}) or die "sh: $!";
        my $text = do { local $/; <$pipe> } // '';
        close($pipe);
        die +{type => 'Exit', message => 'exited with code ' . ($? >> 8)} if $?;
        return $text;
    },
);

sub run {
    my ($fields) = @_;
    my ($task, $call) = @$fields{qw(task call)};
    push @tasks, $task;
    my @values = eval { $functions{$call->{function}{name}}->($call) };
    my $error = $@;
    pop @tasks;
    if ($error) {
        $error = {type => 'Died', message => $error} unless ref $error;
        my $failure = map_(
            type => str($error->{type}), message => str($error->{message}),
            traceback => str(''), value => nil(),
        );
        return send_frame('failure', task => int_($task), failure => $failure);
    }
    my $value = shift @values;
    send_frame('result', task => int_($task), value => bin($value),
        buffers => array(map { bin($_) } @values));
}

send_frame('hello', version => int_(1), tasks => array(map { str($_) } sort keys %functions));
my ($kind, $welcome) = receive();
die "no welcome\n" unless $kind eq 'welcome' && $welcome->{version} == 1;
while (1) {
    my ($kind, $fields) = receive();
    run($fields) if $kind eq 'task';
}
