# Set EdgeSpec up in .\.venv on Windows, as install.sh does elsewhere (and in Git Bash): a CPU build of torch
# unless there is an NVIDIA GPU.
#
#   .\install.ps1              what a user needs
#   .\install.ps1 test         and what the tests need
#   .\install.ps1 dev          and ruff and mypy
#   .\install.ps1 plot cuda    or any extras of pyproject.toml
#
# Where scripts are not allowed to run: powershell -ExecutionPolicy Bypass -File install.ps1
#
# Environment:
#   PYTHON            the interpreter for a new environment (3.10 or later), for example py or C:\Python312\python.exe
#   EDGESPEC_VENV     set up this virtual environment instead of .venv
#   EDGESPEC_TORCH    arguments for `pip install` that give the torch you want
#
# Written for Windows PowerShell 5.1 and later; not run on Windows yet.
Set-StrictMode -Version 2
$ErrorActionPreference = 'Stop'
Set-Location -LiteralPath $PSScriptRoot

function Say([string]$text) { [Console]::Error.WriteLine($text) }
function Fail([string]$text) { Say "install.ps1: $text"; exit 1 }

# A program's exit code is the answer: what it writes to standard error is no error of this script.
function Invoke-Quiet([string]$program, [string[]]$arguments) {
    $ErrorActionPreference = 'Continue'
    try { & $program @arguments 2>&1 | Out-Null; return $LASTEXITCODE } catch { return 1 }
}
function Invoke-Python([string[]]$arguments) {
    $ErrorActionPreference = 'Continue'
    & $python @arguments | Out-Host
    return $LASTEXITCODE
}
function Invoke-Pip([string[]]$arguments) {
    return Invoke-Python (@('-m', 'pip', '-qq') + $arguments)  # errors only
}
function Test-AtLeast([string]$package, [int]$major, [int]$minor) {
    $code = 'import importlib.metadata as m, sys; name, *least = sys.argv[1:]; ' +
        'sys.exit(tuple(map(int, m.version(name).split(''.'')[:2])) < tuple(map(int, least)))'
    return (Invoke-Quiet $python @('-I', '-c', $code, $package, "$major", "$minor")) -eq 0
}

$extras = $args -join ','
if ($extras -cnotmatch '^[a-z0-9,]*$') {
    Fail "'$args' is not a list of extras (see [project.optional-dependencies] in pyproject.toml)"
}
$venv = if ($env:EDGESPEC_VENV) { $env:EDGESPEC_VENV } else { '.venv' }
$python = Join-Path $venv 'Scripts\python.exe'
$command = Join-Path $venv 'Scripts\edgespec.exe'
$recent = 'import sys; sys.exit(sys.version_info < (3, 10))'

# Nothing to do when the same sources asked for the same extras before.
$files = @('pyproject.toml', 'install.ps1') + (Get-ChildItem kernels\native -File | ForEach-Object { $_.FullName })
$sources = (($files | ForEach-Object { Get-Content -Raw -LiteralPath $_ }) -join '') + $PWD.Path + $env:EDGESPEC_TORCH
$sha = [Security.Cryptography.SHA256]::Create()
$hash = $sha.ComputeHash([Text.Encoding]::UTF8.GetBytes($sources))
$digest = [BitConverter]::ToString($hash, 0, 8).Replace('-', '').ToLower()
$stamp = Join-Path $venv (".edgespec-$digest" + $(if ($extras) { "-$extras" }))
$there = 'import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, (''torch'', ''edgespec''))))'
if ((Test-Path -LiteralPath $stamp) -and (Invoke-Quiet $python @('-I', '-c', $there)) -eq 0) {
    Say "EdgeSpec is set up in ${venv}: $command"
    exit 0
}

if (-not (Test-Path -LiteralPath $python)) {
    $candidates = if ($env:PYTHON) { @($env:PYTHON) } else { @('py', 'python', 'python3') }
    $base = $candidates | Where-Object { (Invoke-Quiet $_ @('-c', $recent)) -eq 0 } | Select-Object -First 1
    if (-not $base) { Fail "needs Python 3.10 or later; $($candidates -join ', ') is not. Name one in `$env:PYTHON" }
    Say "Making $venv with $(& $base --version)"
    & $base -m venv $venv
    if ($LASTEXITCODE -ne 0) {
        Remove-Item -Recurse -Force -LiteralPath $venv -ErrorAction SilentlyContinue
        Fail "'$base -m venv' failed (see above)"
    }
}
if ((Invoke-Quiet $python @('-c', $recent)) -ne 0) {
    Fail "$venv has $(& $python --version); EdgeSpec needs 3.10 or later. Remove $venv and run again"
}

$env:PIP_DISABLE_PIP_VERSION_CHECK = '1'
if ((Invoke-Quiet $python @('-m', 'pip', '--version')) -ne 0) {
    if ((Invoke-Quiet $python @('-m', 'ensurepip')) -ne 0) { Fail "$venv has no pip; remove it and run again" }
}
if (-not (Test-AtLeast 'pip' 23 0) -and (Invoke-Pip @('install', '--upgrade', 'pip>=23')) -ne 0) {
    Fail 'could not upgrade pip (see above)'
}
if ((Invoke-Pip @('install', 'setuptools>=77')) -ne 0) {
    Fail 'could not install setuptools (see above); is there a network?'
}

# What `pip install torch` finds on Windows is a CPU build; uv knows where the builds for CUDA are.
function Install-Torch {
    if ($env:EDGESPEC_TORCH) {
        Say "Installing torch: pip install $env:EDGESPEC_TORCH"
        return (Invoke-Pip (@('install') + ($env:EDGESPEC_TORCH.Trim() -split '\s+'))) -eq 0
    }
    $nvidia = $null -ne (Get-Command nvidia-smi -ErrorAction SilentlyContinue)
    foreach ($torch in 'torch==2.13.0', 'torch>=2.6') {
        if ($nvidia) {
            Say 'Installing torch with CUDA (an NVIDIA GPU is present)'
            if ((Invoke-Pip @('install', 'uv')) -ne 0) { return $false }
            $uv = @('-m', 'uv', '--quiet', 'pip', 'install', '--python', $python, '--torch-backend=auto', $torch)
            if ((Invoke-Python $uv) -eq 0) { return $true }
        } else {
            Say "Installing torch for CPU ($torch)"
            if ((Invoke-Pip @('install', $torch)) -eq 0) { return $true }
        }
    }
    return $false
}
if (-not (Test-AtLeast 'torch' 2 6) -and -not (Install-Torch)) {
    Fail "could not install torch (see above). Give pip's arguments yourself in `$env:EDGESPEC_TORCH"
}

$library = & $python -I -c 'import sysconfig; print(''kernels/_native'' + sysconfig.get_config_var(''EXT_SUFFIX''))'
Remove-Item -Force -LiteralPath $library -ErrorAction SilentlyContinue  # which may be of other sources
$project = if ($extras) { ".[$extras]" } else { '.' }
Say "Installing EdgeSpec$(if ($extras) { " with $extras" })"
if ((Invoke-Pip @('install', '--no-build-isolation', '--editable', $project)) -ne 0) {
    Fail 'could not install EdgeSpec (see above)'
}
if (-not (Test-Path -LiteralPath $library)) {
    Say 'No C compiler was found, or it failed: low-bit weights will be multiplied by torch, tens of times slower'
    Say "(with the Build Tools for Visual Studio there, remove $stamp and run this again)"
}
Get-ChildItem -LiteralPath $venv -Filter '.edgespec-*' -Force |
    Where-Object { $_.Name -notlike ".edgespec-$digest*" } | Remove-Item -Force
New-Item -ItemType File -Force -Path $stamp | Out-Null
Say "Ready: $command"
